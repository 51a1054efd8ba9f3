"""Futures for work other than calls: memory transfers, mounts, jobs."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from mesh_core._calls.future import _ERROR, _VALUE, Future
from mesh_core._errors import MeshError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Completion", "CompletionFuture"]

R = TypeVar("R")
V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)


class Completion(Protocol[R_co]):
    """Work that runs outside of Python and ends at some time."""

    def wait(self, timeout: float | None) -> bool:
        """Wait up to `timeout` seconds; return whether the work has ended."""

    def is_done(self) -> bool:
        """Return whether the work has ended."""

    def outcome(self) -> R_co:
        """Return the result of the work or raise its exception; called after it has ended."""

    def cancel(self) -> bool:
        """Cancel the work if it has not ended; return whether this ended it."""

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` on any thread once the work has ended, or now if it already has."""


class CompletionFuture(Future[R], Generic[R]):
    """The future of a `Completion`, with constructors of futures that are settled from the start.

    Args:
        completion: The work.
    """

    __slots__ = ("_completion",)

    def __init__(self, completion: Completion[R]) -> None:
        self._start()
        self._completion: Completion[R] = completion

    @staticmethod
    def completed(value: V) -> Future[V]:
        """Return a future that already has a value."""
        return _SettledFuture(_VALUE, value)

    @staticmethod
    def failed(error: BaseException) -> Future[Any]:
        """Return a future that already has an exception."""
        return _SettledFuture(_ERROR, _without_callers(error))

    def _wait(self, timeout: float | None) -> None:
        if not self._completion.wait(timeout):
            raise TimeoutError(f"not completed in {timeout} s")
        self._take()

    def _poll(self) -> None:
        if self._completion.is_done():
            self._take()

    def _take(self) -> None:
        try:
            value = self._completion.outcome()
        except BaseException as error:
            self._settle(_ERROR, _without_callers(error))
        else:
            self._settle(_VALUE, value)
        # Release what the work has used, for example a lease on memory, before the future is gone.
        self._completion = _OVER

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        def wake() -> None:
            try:
                loop.call_soon_threadsafe(self._poll)
            except RuntimeError:
                # The loop is closed, so no task awaits the future.
                return

        self._completion.when_done(wake)

    def cancel(self) -> bool:
        """Cancel the work; return whether this ended it.

        Afterwards `get` raises the exception with which cancelled work ends, a `CallCancelled`.
        """
        if self.done():
            return False
        is_given_up = self._completion.cancel()
        self._poll()
        return is_given_up


def _without_callers(error: BaseException) -> BaseException:
    """Remove the frames of the current calls from the traceback of an error of Mesh.

    A frame refers to its callers and all their variables: the future, which refers to the error,
    and for example a buffer, whose lease would last until a garbage collection. Other exceptions
    keep their traceback, because their message may not describe the problem.
    """
    trace = error.__traceback__
    if not isinstance(error, MeshError) or trace is None:
        return error
    caller = trace.tb_frame.f_back
    while trace is not None and trace.tb_frame.f_back is caller:
        caller, trace = trace.tb_frame, trace.tb_next
    return error.with_traceback(trace)


class _Over:
    """Stands for work that has ended, whose outcome the future has."""

    def wait(self, timeout: float | None) -> bool:
        return True

    def is_done(self) -> bool:
        return True

    def outcome(self) -> Any:
        return None

    def cancel(self) -> bool:
        return False

    def when_done(self, callback: Callable[[], object]) -> None:
        callback()


_OVER = _Over()


class _SettledFuture(Future[R]):
    """A future that is settled from the start."""

    __slots__ = ()

    def __init__(self, state: int, outcome: Any) -> None:
        self._start()
        self._settle(state, outcome)
