"""Bringing values from the processes to the program."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils import _pytree as pytree

from mesh_core.spi import future_of
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh_core import Future
    from mesh_tensor._engine.engine import Fetched

__all__ = ["fetch_shard", "inspect", "show"]

T = TypeVar("T")


def fetch_shard(tree: T, shard: Mapping[str, int] | None = None, **coordinates: int) -> Future[T]:
    """Brings the values of one process here.

    Args:
        tree: A tensor, or anything that torch's pytrees know with tensors in it.
        shard: Which process, by its place in each dimension of the tensor's mesh; that may be
            said by `coordinates` as well. Where nothing is said, the first one.

    Returns:
        The same with the values as tensors of this process. It fails with `OpFailed` if what they
        depend on failed, on whichever process.

    Raises:
        MeshIndexError: There is no such process.
        UnknownDim: There is no such dimension.
        ValueError: Some dimensions were left out, and not all.
    """
    leaves, spec = pytree.tree_flatten(tree)
    chosen = {**(shard or {}), **coordinates}
    places = [place for place, one in enumerate(leaves) if type(one) is Tensor]
    pending = [leaves[place]._meta.mesh._engine.fetch(leaves[place], chosen) for place in places]
    return future_of(_Fetch(leaves, spec, places, pending))


def inspect(tree: T, shard: Mapping[str, int] | None = None, **coordinates: int) -> T:
    """Brings the values of one process here, and waits for them; see `fetch_shard`."""
    return fetch_shard(tree, shard, **coordinates).get()


def show(tree: Any, shard: Mapping[str, int] | None = None, **coordinates: int) -> None:
    """Prints the values of one process; see `fetch_shard`."""
    print(inspect(tree, shard, **coordinates))


class _Fetch:
    """Values on their way, and the tree that they belong in: a `mesh_core.spi.Completion`."""

    def __init__(
        self, leaves: Sequence[Any], spec: Any, places: Sequence[int], pending: Sequence[Fetched]
    ) -> None:
        self._leaves = list(leaves)
        self._spec = spec
        self._places = places
        self._pending = pending

    def wait(self, timeout: float | None) -> bool:
        """Waits; says whether all have come."""
        until = None if timeout is None else time.monotonic() + timeout
        for one in self._pending:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                one.answer.exception(left)
            except TimeoutError:
                return False
        return True

    def is_done(self) -> bool:
        """Says whether all have come."""
        return all(one.answer.done() for one in self._pending)

    def outcome(self) -> Any:
        """Gives the tree, or raises what a value depends on that has failed."""
        for place, one in zip(self._places, self._pending, strict=True):
            self._leaves[place] = one.value()
        return pytree.tree_unflatten(self._leaves, self._spec)

    def cancel(self) -> bool:
        """Gives up waiting; what was asked for is made all the same."""
        return [one.answer.cancel() for one in self._pending].count(True) > 0

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls back once all have come."""
        left = list(self._pending)

        def next_one(_: object = None) -> None:
            if left:
                left.pop().answer.add_done_callback(next_one)
            else:
                callback()

        next_one()
