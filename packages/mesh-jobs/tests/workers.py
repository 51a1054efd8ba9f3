"""Workers on the loopback, for tests of what needs hosts and no scheduler."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_core import attach_to_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh

END_LIMIT_S = 30.0


@contextmanager
def loopback_hosts(count: int) -> Iterator[HostMesh]:
    """Attaches to so many new workers, which end afterwards."""
    command = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(count)
    ]
    try:
        hosts = attach_to_workers([_address_of(worker) for worker in started])
        hosts.initialized.get(timeout=END_LIMIT_S)
        yield hosts
        hosts.shutdown().get(timeout=END_LIMIT_S)
    finally:
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.wait(END_LIMIT_S)
            assert worker.stdout is not None
            worker.stdout.close()


def _address_of(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    said = worker.stdout.readline()
    assert said, "the worker said nothing"
    return said.split()[-1]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
