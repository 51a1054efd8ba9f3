"""Streams: operations on one stream keep their order and run concurrently with other streams."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mesh_tensor._mesh.activation import active_mesh, active_stream
from mesh_tensor._streams.borrow import Borrow, borrow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["Stream", "get_active_stream"]


class Stream:
    """An order of operations in each process, concurrent with those of other streams.

    A stream has a thread in each process, and a stream of the device if there is one. A tensor
    belongs to the stream on which it was created, and an operation runs on the stream of its
    operands. Operands of one operation must not belong to different streams. To use a tensor on
    another stream, borrow it.

    Args:
        name: The name in error messages.

    Example:
        >>> comm = Stream("comm")
        >>> total, borrow = comm.borrow(gradient, mutable=True)
        >>> total.reduce_("dp")  # while other operations continue
        >>> borrow.drop()  # later operations on `gradient` wait for it
    """

    __slots__ = ("__weakref__", "name")

    def __init__(self, name: str) -> None:
        self.name: str = name

    @contextmanager
    def activate(self) -> Iterator[Stream]:
        """Issue operations on this stream until the `with` block ends, in this thread or task.

        Within the block, tensors of other streams are refused, except in the backward pass of
        autograd, which runs on the streams of its tensors.
        """
        token = active_stream.set(self)
        mesh = active_mesh.get()
        own = None if mesh is None else active_mesh.set(mesh._on(self))
        try:
            yield self
        finally:
            if own is not None:
                active_mesh.reset(own)
            active_stream.reset(token)

    def borrow(self, tensor: Tensor, mutable: bool = False) -> tuple[Tensor, Borrow]:
        """Borrow a tensor of another stream for this stream, until the borrow is dropped.

        Both tensors share their memory, and all views of the tensor are borrowed with it. While the
        borrow lasts, both streams may read the tensor, and neither may write to it. While a mutable
        borrow lasts, this stream may read and write, and the tensor's own stream may do neither.
        The first operation on the borrowed tensor waits for earlier operations on the original.
        Operations on the original after `drop` wait for this stream if either of the two writes.

        Args:
            tensor: The tensor to borrow.
            mutable: Whether this stream may write to it.

        Returns:
            The tensor on this stream, and the borrow.

        Raises:
            BorrowedMutably: The tensor is already borrowed mutably.
            MutatingBorrow: This borrow is mutable, and the tensor is already borrowed.
            BorrowEnded: The tensor is itself borrowed, and that borrow was dropped.
            NoGradient: The tensor requires gradients, and the borrow is mutable.
        """
        return borrow(self, tensor, mutable)

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"


#: The stream of programs that do not use streams.
default_stream = Stream("default")


def get_active_stream() -> Stream:
    """Return the stream on which new tensors are created: the active or the default stream."""
    return active_stream.get() or default_stream
