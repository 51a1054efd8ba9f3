"""Workers on all hosts of a world except the first, which runs the programs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from mesh_core import Credentials
from mesh_core.testing import wait_until
from tests.hosts.cluster.program import Program
from tests.hosts.world import Host, World
from tools.workspace import ROOT

PORT = 26600

#: Time limit for the exit of a worker.
END_LIMIT_S = 30.0


class Worker:
    """A `python -m mesh_core.worker` process on a host."""

    def __init__(self, host: Host, listen: str, credentials: Path) -> None:
        """Start the worker and wait until it listens.

        Raises:
            RuntimeError: The worker exited during startup.
        """
        self.host = host
        words = ["--listen", listen, "--credentials", str(credentials)]
        self.process = host.popen(
            [sys.executable, "-m", "mesh_core.worker", *words], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said.startswith("mesh worker serves"):
            raise RuntimeError(f"a worker at {listen} did not come up")
        # A worker waits when the pipe is full, after about a thousand jobs.
        threading.Thread(target=self._discard_output, daemon=True).start()

    def _discard_output(self) -> None:
        assert self.process.stdout is not None
        # The file is closed when the worker is.
        with suppress(OSError, ValueError):
            for _ in self.process.stdout:
                pass

    @property
    def is_alive(self) -> bool:
        """Whether the worker is running."""
        return self.process.poll() is None

    def session(self) -> int:
        """Return the session process that serves the current job, or waits for one."""
        # The worker may just have replaced it.
        return wait_until(lambda: children(self.process.pid)[:1], END_LIMIT_S)[0]

    def wait_for_session_after(self, session: int) -> None:
        """Wait until the process of `session` has been replaced by one that waits for a job."""
        wait_until(lambda: children(self.process.pid)[:1] not in ([], [session]), END_LIMIT_S)

    def outer(self, pids: Iterable[int]) -> list[int]:
        """Translate pids of the host to pids outside it, in the same order."""
        names = {inner_pid(pid): pid for pid in self.host.pids()}
        return [names[pid] for pid in pids]

    def close(self) -> None:
        """Terminate the worker in an orderly way, and kill it if it does not exit in time."""
        self.process.terminate()
        try:
            self.process.wait(END_LIMIT_S)
        finally:
            self.process.release()


class WorkerCluster:
    """A world with a client and workers, and the credentials of one job.

    The first host runs programs; the others run workers.
    """

    def __init__(
        self,
        world: World,
        folder: Path,
        hosts: Sequence[Host] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Start the workers.

        Args:
            world: The hosts.
            folder: A folder that all hosts share.
            hosts: The hosts with workers. Default: all except the first.
            credentials: The credentials of the job. Default: new credentials.
        """
        self.world = world
        self.folder = folder
        self.client, *others = world.hosts
        self.hosts: Sequence[Host] = others if hosts is None else hosts
        self._workers: dict[str, Worker] = {}
        self.credentials = credentials or Credentials.create()
        self.credentials.save(folder / "client")
        for host in self.hosts:
            self.credentials.issue(role="worker", name=host.name).save(folder / host.name)
            self.start_worker(host)

    def start_worker(self, host: Host, listen: str = f"tcp://*:{PORT}") -> Worker:
        """Start a worker and stop the previous one on the host."""
        if old := self._workers.pop(host.name, None):
            old.close()
        worker = Worker(host, listen, self.folder / host.name)
        self._workers[host.name] = worker
        return worker

    @property
    def keys(self) -> str:
        """The folder with the credentials of the client."""
        return str(self.folder / "client")

    def worker(self, host: Host) -> Worker:
        """Return the worker of a host."""
        return self._workers[host.name]

    def addresses(self, hosts: Sequence[Host] | None = None) -> list[str]:
        """Return the addresses of the workers, with host names."""
        return [f"tcp://{host.name}:{PORT}" for host in (self.hosts if hosts is None else hosts)]

    @contextmanager
    def program(self, env: Mapping[str, str] | None = None) -> Iterator[Program]:
        """Run a program on the client that has not attached any worker yet."""
        with Program(self.client, env) as program:
            yield program

    def repair(self) -> None:
        """Restore the hosts without power and the workers that a test has stopped."""
        for host in self.world:
            host.power_on()
        for host in self.hosts:
            if not self.worker(host).is_alive:
                self.start_worker(host)

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> WorkerCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def children(pid: int) -> list[int]:
    """Return the child processes of a process, oldest first."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as names:
                found += map(int, names.read().split())
    except OSError:
        return found  # The process has exited.
    return sorted(found)


def inner_pid(pid: int) -> int:
    """Return the pid of a process in its innermost namespace."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[-1]) for line in status if line.startswith("NSpid:"))
    except (OSError, StopIteration):
        return 0  # The process has exited.
