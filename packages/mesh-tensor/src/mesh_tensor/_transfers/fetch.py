"""Fetching values from the processes to the program."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils import _pytree as pytree

from mesh_core.spi import CompletionFuture
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh_core import Future
    from mesh_tensor._engine.fetched import Fetched

__all__ = ["fetch_shard", "inspect", "show"]

T = TypeVar("T")


def fetch_shard(tree: T, shard: Mapping[str, int] | None = None, **coordinates: int) -> Future[T]:
    """Fetch the values of one process.

    Args:
        tree: A tensor, or any PyTorch pytree that contains tensors.
        shard: The process, by its coordinate in each dimension of the tensor's mesh. Default: the
            first process.
        **coordinates: The same as keyword arguments.

    Returns:
        A future of the same tree, with the values as local tensors. It fails with `OpFailed` if
        anything that they depend on has failed on any process.

    Raises:
        MeshIndexError: The mesh has no such process.
        UnknownDim: The mesh has no such dimension.
        ValueError: Some but not all dimensions are given.
    """
    leaves, spec = pytree.tree_flatten(tree)
    chosen = {**(shard or {}), **coordinates}
    indexes = [index for index, one in enumerate(leaves) if type(one) is Tensor]
    pending = [leaves[index]._meta.mesh._engine.fetch(leaves[index], chosen) for index in indexes]
    return CompletionFuture(_Fetch(leaves, spec, indexes, pending))


def inspect(tree: T, shard: Mapping[str, int] | None = None, **coordinates: int) -> T:
    """Fetch the values of one process and wait for them; see `fetch_shard`."""
    return fetch_shard(tree, shard, **coordinates).get()


def show(tree: Any, shard: Mapping[str, int] | None = None, **coordinates: int) -> None:
    """Print the values of one process; see `fetch_shard`."""
    print(inspect(tree, shard, **coordinates))


class _Fetch:
    """The pending values of a tree; a `mesh_core.spi.Completion`."""

    def __init__(
        self, leaves: Sequence[Any], spec: Any, indexes: Sequence[int], pending: Sequence[Fetched]
    ) -> None:
        self._leaves = list(leaves)
        self._spec = spec
        self._indexes = indexes
        self._pending = pending

    def wait(self, timeout: float | None) -> bool:
        """Wait for all values; return whether all have arrived."""
        until = None if timeout is None else time.monotonic() + timeout
        for one in self._pending:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                one.answer.exception(left)
            except TimeoutError:
                return False
        return True

    def is_done(self) -> bool:
        """Return whether all values have arrived."""
        return all(one.answer.done() for one in self._pending)

    def outcome(self) -> Any:
        """Return the tree, or raise the failure that one of its values depends on."""
        for index, one in zip(self._indexes, self._pending, strict=True):
            self._leaves[index] = one.value()
        return pytree.tree_unflatten(self._leaves, self._spec)

    def cancel(self) -> bool:
        """Stop waiting. The requests themselves are still executed."""
        return [one.answer.cancel() for one in self._pending].count(True) > 0

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once all values have arrived."""
        left = list(self._pending)

        def next_one(_: object = None) -> None:
            if left:
                left.pop().answer.add_done_callback(next_one)
            else:
                callback()

        next_one()
