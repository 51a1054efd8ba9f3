"""A function that runs in a thread of the pool, as a completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from mesh_rdma._completions.completion import ThreadedCompletion
from mesh_rdma._completions.thread_pool import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Task"]

R = TypeVar("R")


class Task(ThreadedCompletion, Generic[R]):
    """Runs a function, as a `mesh_core.spi.Completion`.

    Args:
        work: The function to run.
        end: A function that makes `work` end early with an error.
    """

    def __init__(self, work: Callable[[], R], end: Callable[[], object]) -> None:
        super().__init__()
        self._work = work
        self._end = end
        self._value: R | None = None

    def start(self) -> Task[R]:
        """Start the function in a thread."""
        run_in_thread(self._run)
        return self

    def outcome(self) -> R:
        """Return the result of the function, or raise its error."""
        if self._error is not None:
            raise self._error
        return cast("R", self._value)

    def cancel(self) -> bool:
        """Make the function end early, and wait until it has."""
        was_done = self._done.is_set()
        self._end()
        self._done.wait()
        return not was_done and self._error is not None

    def _run(self) -> None:
        failed: BaseException | None = None
        try:
            self._value = self._work()
        except BaseException as error:
            failed = error
        self._settle(failed)
