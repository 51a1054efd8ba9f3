"""Streams: what a program does on one keeps its order, and runs beside what it does on others."""

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
    """An order of operations, in each process, which runs beside those of other streams.

    A stream has a thread in each process, and a stream of the device where there is one. A tensor
    belongs to the stream that made it, and operations are issued on the stream of their tensors;
    those of two streams do not meet. Another stream gets at a tensor by borrowing it.

    Args:
        name: For messages.

    Example:
        >>> comm = Stream("comm")
        >>> total, loan = comm.borrow(gradient, mutable=True)
        >>> total.reduce_("dp")  # while other operations go on
        >>> loan.drop()  # what comes now on `gradient` waits for it
    """

    __slots__ = ("__weakref__", "name")

    def __init__(self, name: str) -> None:
        self.name: str = name

    @contextmanager
    def activate(self) -> Iterator[Stream]:
        """Has operations issued on this stream until the `with` ends, in this thread or task.

        Tensors of other streams are refused within it, but by the backward of autograd, which
        runs on the streams of its tensors.
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
        """Gives this stream a tensor of another one, for as long as the borrow lasts.

        Both share their memory. While it lasts, both streams may read the tensor and none may write
        to it; of a mutable borrow this stream may do both, and that of the tensor none.
        All that shares memory with the tensor is borrowed with it. The first operation on what was
        borrowed waits for what was done to the tensor before; what is done to the tensor after the
        borrow was dropped waits for what this stream has done, if one of both writes.

        Args:
            tensor: What is borrowed.
            mutable: Whether this stream may write to it.

        Returns:
            The tensor as this stream has it, and the borrow.

        Raises:
            BorrowedMutably: Another borrow of it lasts that may write to it.
            MutatingBorrow: This one may write to it, and another one lasts.
            BorrowEnded: It was borrowed itself, and that was dropped.
            NoGradient: The tensor needs gradients, and would be written to.
        """
        return borrow(self, tensor, mutable)

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"


#: That of programs without any.
default_stream = Stream("default")


def get_active_stream() -> Stream:
    """Gives the stream that new tensors are made on; the default one where none is active."""
    return active_stream.get() or default_stream
