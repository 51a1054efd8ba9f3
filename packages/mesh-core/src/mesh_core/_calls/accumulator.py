"""Folding the answers of a mesh into one value."""

from __future__ import annotations

from typing import Generic, ParamSpec, TypeVar

from mesh_core._calls.coroutine_future import run_async
from mesh_core._calls.event_loop import loop_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._calls.future import Future

__all__ = ["Accumulator"]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Accumulator(Generic[P, R, A]):
    """Calls an endpoint on every actor and folds the answers in the order in which they come.

    Args:
        endpoint: What to call.
        identity: What the fold starts from.
        combine: Takes the fold so far and one answer; gives the fold.
    """

    def __init__(self, endpoint: Endpoint[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Calls and folds.

        Raises:
            TypeError: The arguments do not fit the method, or cannot be pickled.
        """
        answers = self._endpoint.stream(*args, **kwargs)

        async def fold() -> A:
            folded = self._identity
            async for answer in answers:
                folded = self._combine(folded, answer)
            return folded

        return run_async(loop_thread(), fold())
