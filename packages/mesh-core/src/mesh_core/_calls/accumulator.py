"""Reduction of the replies of a mesh to one value."""

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
    """Calls an endpoint on every actor and folds the replies in the order in which they arrive.

    Args:
        endpoint: The endpoint to call.
        identity: The initial value of the fold.
        combine: Function of the current value and one reply that returns the new value.
    """

    def __init__(self, endpoint: Endpoint[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Call the endpoint and return a future of the folded value.

        Raises:
            TypeError: The arguments do not match the signature, or cannot be pickled.
        """
        answers = self._endpoint.stream(*args, **kwargs)

        async def fold() -> A:
            folded = self._identity
            async for answer in answers:
                folded = self._combine(folded, answer)
            return folded

        return run_async(loop_thread(), fold())
