"""The owner's programs during an attack: workers, and a job that uses them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.security.users import User

END_LIMIT_S = 30.0
_CORE_WORKER = ("mesh_core.worker", "--listen", "tcp://127.0.0.1:0")
_JOBS_WORKER = ("mesh_jobs.worker", "--listen", "tcp://127.0.0.1:0", "--mesh", "m", "--rank", "0")


@dataclass
class Worker:
    """A worker without credentials of a job.

    Attributes:
        process: The worker.
        address: Its listening address, such as `tcp://127.0.0.1:26600`.
        report: The report that it printed; empty for a worker of mesh-core.
    """

    process: subprocess.Popen[str]
    address: str
    report: dict[str, Any]

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.address.rpartition(":")[2])

    def stop(self) -> str:
        """Stop the worker, and return its output since it started to listen."""
        self.process.terminate()
        return self.process.communicate(timeout=END_LIMIT_S)[0]


class Job:
    """A program that has attached workers or was rejected."""

    def __init__(self, user: User, workers: Sequence[str], env: dict[str, str]) -> None:
        command = [user.python, "-m", "tests.security.owner_job", *workers]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = user.popen(command, env=env, **pipes)
        self.outcome: str = self._read()

    def echo(self, text: str) -> str:
        """Make the actor on the workers return a text."""
        assert self._process.stdin is not None
        print(text, file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """Let the program exit."""
        self._process.communicate(timeout=END_LIMIT_S)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def running_worker(user: User, *, with_control: bool = False, **env: str) -> Iterator[Worker]:
    """Run a worker as a user, with a control service if requested."""
    module, *options = _JOBS_WORKER if with_control else _CORE_WORKER
    command = [user.python, "-m", module, *options]
    with user.popen(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            if with_control:
                said = next(line for line in process.stdout if line.startswith("{"))
                report = json.loads(said)
                yield Worker(process, report["address"], report)
            else:
                yield Worker(process, process.stdout.readline().split()[-1], {})
        finally:
            if process.poll() is None:
                process.terminate()


@contextmanager
def running_job(user: User, *workers: Worker | str, **env: str) -> Iterator[Job]:
    """Run a job of a user on workers."""
    addresses = [one if isinstance(one, str) else one.address for one in workers]
    job = Job(user, addresses, env)
    try:
        yield job
    finally:
        job.close()
