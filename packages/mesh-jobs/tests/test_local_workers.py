"""Workers of this machine, which are found in the process table by their command lines."""

from __future__ import annotations

import sys
import threading
import uuid
from pathlib import Path

from mesh_jobs._host.process_table import command_of
from mesh_jobs._worker.local_workers import all_workers, end_workers, running_workers, start_worker


def youngest_child() -> int:
    """Return the pid of the process that this thread has started last."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    return int(children.split()[-1])


def test_a_worker_can_be_recognized_as_soon_as_it_is_started(tmp_path: Path) -> None:
    allocation = uuid.uuid4().hex
    idle = [sys.executable, "-c", "import time; time.sleep(600)", "mesh_jobs.worker", allocation]
    try:
        for rank in range(10):
            argv = [*idle, "--mesh", "ones", "--rank", str(rank)]
            start_worker(argv, {}, tmp_path / "log")
            assert command_of(youngest_child()) == argv
        assert running_workers(allocation).keys() == {("ones", rank) for rank in range(10)}
    finally:
        end_workers(all_workers(allocation))


def test_a_worker_that_exits_at_once_is_not_waited_for(tmp_path: Path) -> None:
    allocation = uuid.uuid4().hex
    argv = ["true", "mesh_jobs.worker", allocation, "--mesh", "ones", "--rank", "0"]
    start_worker(argv, {}, tmp_path / "log")
    assert running_workers(allocation) == {}
