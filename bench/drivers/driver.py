"""The operations that workloads are made of; each driver offers those it can."""

from __future__ import annotations

from typing import Any, Protocol


class NotOfferedError(Exception):
    """This driver has no such operation, so the workload is not for it."""


class Pending(Protocol):
    """A call that has not been answered yet."""

    def get(self, timeout: float | None = None) -> Any:
        """Waits for the answer."""


class Driver:
    """One thing to measure: workers in other processes, and ways to reach them.

    Worker 0 answers every operation that addresses a single worker.
    """

    #: The name in every result.
    name = "?"
    #: How many workers of one mesh may be killed one after the other, each being noticed.
    kills_per_mesh = 8
    #: The longest pause before a kill, so that kills fall anywhere in the period of a poll.
    kill_pause_s_max = 0.0

    def start(self, workers: int, kind: str = "blocking") -> None:
        """Starts worker processes; returns when each of them has answered once.

        Args:
            workers: How many.
            kind: `blocking` or `async`, after the endpoints the workers have.
        """
        raise self._not_offered("start")

    def stop(self) -> None:
        """Asks the workers to end; they may still be ending when this returns."""
        raise self._not_offered("stop")

    def close(self) -> None:
        """Ends whatever is left, once all measuring is over."""

    def stop_after_kills(self) -> None:
        """Asks the workers to end when some of them have been killed on purpose."""
        self.stop()

    def close_after_kills(self) -> None:
        """Ends whatever is left when workers have been killed on purpose."""
        self.close()

    def pids(self) -> list[int]:
        """Returns the pid of each worker, by rank."""
        raise self._not_offered("pids")

    def call(self, x: int) -> int:
        """Calls worker 0 and waits for what it returns, `x`."""
        raise self._not_offered("call")

    async def call_async(self, x: int) -> int:
        """Calls worker 0 from an event loop and waits for what it returns, `x`."""
        raise self._not_offered("call_async")

    def call_all(self, x: int) -> list[int]:
        """Calls every worker with `x` and waits for all of them."""
        raise self._not_offered("call_all")

    def pipelined(self, n: int) -> None:
        """Has `n` calls in flight to worker 0, then waits for all of them."""
        raise self._not_offered("pipelined")

    def one_way(self, n: int) -> None:
        """Sends `n` messages to worker 0 and waits until it has taken all of them."""
        raise self._not_offered("one_way")

    def worker_to_worker(self, n: int) -> list[float]:
        """Has worker 0 call worker 1 `n` times; returns the seconds that each call took."""
        raise self._not_offered("worker_to_worker")

    def echo(self, x: Any) -> Any:
        """Sends a payload to worker 0 and waits until it has come back."""
        raise self._not_offered("echo")

    def scribble(self, x: Any) -> int:
        """Has worker 0 write 255 to the first byte of the array it received, and return it."""
        raise self._not_offered("scribble")

    def cast(self, x: Any, *, read: bool) -> None:
        """Sends a payload to every worker and waits until each of them has looked at it.

        Args:
            x: The payload.
            read: Whether each worker reads every byte, or the first and the last one only.
        """
        raise self._not_offered("cast")

    def hang(self, rank: int, path: str) -> Pending:
        """Calls a worker that writes to the FIFO at `path` and never returns."""
        raise self._not_offered("hang")

    def _not_offered(self, operation: str) -> NotOfferedError:
        return NotOfferedError(f"{self.name} does not offer {operation}")
