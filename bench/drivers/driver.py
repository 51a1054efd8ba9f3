"""The operations that workloads perform; each driver implements the operations that it supports."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_PAUSE_S = 0.1


class NotOfferedError(Exception):
    """This driver does not support the operation, so the workload does not apply to it."""


class Pending(Protocol):
    """A call without a reply yet."""

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the reply."""


@dataclass(frozen=True)
class TwoHosts:
    """The host of the program, and another one for a worker."""

    #: IP address of the host of the program.
    program: str
    #: IP address of the host of the worker.
    worker: str
    #: A folder that both hosts see, for the files that the program writes for the worker.
    folder: Path

    def awaited(self, name: str) -> Path:
        """Wait until the program has left a file or folder of this name; return its path."""
        path = self.folder / name
        while not path.exists():
            time.sleep(_PAUSE_S)
        return path


class Driver:
    """A subject of measurements: workers in other processes, and the ways to reach them.

    Worker 0 serves every operation that addresses a single worker.
    """

    #: The name in every result.
    name = "?"
    #: Number of workers of a mesh that may be killed in sequence such that each death is detected.
    kills_per_mesh = 8
    #: Maximum random pause before a kill, so that kills are spread over the polling period.
    kill_pause_s_max = 0.0

    def start(self, workers: int, kind: str = "blocking") -> None:
        """Start worker processes; return when each of them has replied once.

        Args:
            workers: Number of workers.
            kind: `blocking` or `async`: the kind of endpoints of the workers.
        """
        raise self._not_offered("start")

    def serve(self, hosts: TwoHosts) -> None:
        """Serve the host of the worker, and never return; the program may start later."""
        raise self._not_offered("serve")

    def start_across(self, hosts: TwoHosts) -> None:
        """Start worker 0 on the host that `serve` serves; return when it has replied once."""
        raise self._not_offered("start_across")

    def stop(self) -> None:
        """Request the exit of the workers; they may still be running when this returns."""
        raise self._not_offered("stop")

    def close(self) -> None:
        """Stop everything that is still running, after all measurements."""

    def stop_after_kills(self) -> None:
        """Request the exit of the workers after some of them have been killed on purpose."""
        self.stop()

    def close_after_kills(self) -> None:
        """Stop everything that is still running after workers have been killed on purpose."""
        self.close()

    def pids(self) -> list[int]:
        """Return the pid of each worker, by rank."""
        raise self._not_offered("pids")

    def call(self, x: int) -> int:
        """Call worker 0 and wait for its result, `x`."""
        raise self._not_offered("call")

    async def call_async(self, x: int) -> int:
        """Call worker 0 from an event loop and wait for its result, `x`."""
        raise self._not_offered("call_async")

    def call_all(self, x: int) -> list[int]:
        """Call every worker with `x` and wait for all results."""
        raise self._not_offered("call_all")

    def pipelined(self, n: int) -> None:
        """Issue `n` concurrent calls to worker 0, then wait for all of them."""
        raise self._not_offered("pipelined")

    def one_way(self, n: int) -> None:
        """Send `n` messages to worker 0 and wait until it has received all of them."""
        raise self._not_offered("one_way")

    def mapped(self, n: int) -> None:
        """Distribute `n` items over all workers, and take the results in any order."""
        raise self._not_offered("mapped")

    def worker_to_worker(self, n: int) -> list[float]:
        """Make worker 0 call worker 1 `n` times; return the duration of each call in seconds."""
        raise self._not_offered("worker_to_worker")

    def echo(self, x: Any) -> Any:
        """Send a payload to worker 0 and wait until it has been returned."""
        raise self._not_offered("echo")

    def scribble(self, x: Any) -> int:
        """Make worker 0 write 255 to the first byte of the received array, and return it."""
        raise self._not_offered("scribble")

    def cast(self, x: Any, *, read: bool) -> None:
        """Send a payload to every worker and wait until each of them has read it.

        Args:
            x: The payload.
            read: Whether each worker reads every byte, or only the first and the last one.
        """
        raise self._not_offered("cast")

    def hang(self, rank: int, path: str) -> Pending:
        """Call a worker that writes to the FIFO at `path` and never returns."""
        raise self._not_offered("hang")

    def fill_memory(self, rank: int) -> Pending:
        """Call a worker that allocates memory until the kernel kills it."""
        raise self._not_offered("fill_memory")

    def _not_offered(self, operation: str) -> NotOfferedError:
        return NotOfferedError(f"{self.name} does not offer {operation}")
