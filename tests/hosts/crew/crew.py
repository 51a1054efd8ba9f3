"""Workers on all hosts of a world but the first, which programs run on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from mesh_core import Credentials
from mesh_core.testing import wait_until
from tests.hosts.crew.program import Program
from tests.hosts.world import Host, World
from tools.workspace import ROOT

PORT = 26600

#: How long a worker may take to end.
END_LIMIT_S = 30.0


class Worker:
    """`python -m mesh_core.worker` on a host."""

    def __init__(self, host: Host, listen: str, credentials: Path) -> None:
        """Starts it, and waits until it listens.

        Raises:
            RuntimeError: It ended at once.
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

    @property
    def is_alive(self) -> bool:
        """Whether it still is there."""
        return self.process.poll() is None

    def session(self) -> int:
        """Returns the process that serves the job now, or waits for one."""
        return children(self.process.pid)[0]

    def wait_for_session_after(self, session: int) -> None:
        """Waits until another process waits for a job than the one that served the last job."""
        wait_until(lambda: children(self.process.pid)[:1] not in ([], [session]), END_LIMIT_S)

    def outer(self, pids: Iterable[int]) -> list[int]:
        """Returns what processes of the host are called out here, in their order."""
        names = {inner_pid(pid): pid for pid in self.host.pids()}
        return [names[pid] for pid in pids]

    def close(self) -> None:
        """Ends it in good order, and with force what then is left."""
        self.process.terminate()
        try:
            self.process.wait(END_LIMIT_S)
        finally:
            self.process.release()


class Crew:
    """A world with a client and workers, and the credentials of one job.

    The first host is for programs; the others have workers.
    """

    def __init__(
        self,
        world: World,
        folder: Path,
        hosts: Sequence[Host] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Starts the workers.

        Args:
            world: The hosts.
            folder: In view of all of them.
            hosts: Those with workers; all but the first when left out.
            credentials: Of the job; new ones when left out.
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
        """Starts a worker, in place of the one that was there."""
        if old := self._workers.pop(host.name, None):
            old.close()
        worker = Worker(host, listen, self.folder / host.name)
        self._workers[host.name] = worker
        return worker

    @property
    def keys(self) -> str:
        """The folder with the client's credentials."""
        return str(self.folder / "client")

    def worker(self, host: Host) -> Worker:
        """Returns the worker of a host."""
        return self._workers[host.name]

    def addresses(self, hosts: Sequence[Host] | None = None) -> list[str]:
        """Returns where the workers listen: by name."""
        return [f"tcp://{host.name}:{PORT}" for host in (self.hosts if hosts is None else hosts)]

    @contextmanager
    def program(self, env: Mapping[str, str] | None = None) -> Iterator[Program]:
        """A program on the client, with nothing attached yet."""
        with Program(self.client, env) as program:
            yield program

    def mend(self) -> None:
        """Brings back what a test has ended: hosts without power, workers that died."""
        for host in self.world:
            host.power_on()
        for host in self.hosts:
            if not self.worker(host).is_alive:
                self.start_worker(host)

    def close(self) -> None:
        """Ends the workers."""
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def children(pid: int) -> list[int]:
    """Returns the processes that a process has started, the oldest first."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as names:
                found += map(int, names.read().split())
    except OSError:
        return found  # it ended
    return sorted(found)


def inner_pid(pid: int) -> int:
    """Returns what a process calls itself."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[-1]) for line in status if line.startswith("NSpid:"))
    except (OSError, StopIteration):
        return 0  # it ended
