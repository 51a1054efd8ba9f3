"""Pipes: functions that run beside the operations of a process, and exchange tensors with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_tensor._errors import PipeEnded
from mesh_tensor._mesh.activation import mesh_or_active
from mesh_tensor._remote.function import remote
from mesh_tensor._remote.opaque_ref import OpaqueRef
from mesh_tensor._remote.pipe_endpoint import ServedPipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["Pipe", "create_pipe"]


def _begin_here(function: Any, args: Any, kwargs: dict[str, Any], depth: int) -> OpaqueRef:
    return OpaqueRef(ServedPipe(function, args, kwargs, depth))


def _send_here(ref: OpaqueRef, tree: Any) -> None:
    ref.value.send(tree)


def _recv_here(ref: OpaqueRef) -> Any:
    return ref.value.recv()


_begin = remote(_begin_here, propagate=lambda *_: OpaqueRef())
#: What never comes is not waited for: without its operand the pipe is lost.
_send = remote(_send_here, propagate="inspect").spoiling()


class Pipe:
    """The program's end of a pipe; `create_pipe` makes it.

    Dropping it ends the pipe: the function finds nothing more to receive, and cannot send.
    """

    def __init__(self, ref: OpaqueRef, name: str, propagate: Callable[[], Any] | None) -> None:
        self._ref: OpaqueRef | None = ref
        self._name = name
        rule: Any = "cached" if propagate is None else lambda _: propagate()
        self._recv = remote(_recv_here, propagate=rule)

    def send(self, tree: Any) -> None:
        """Sends tensors, in each process to the function there; returns at once.

        Args:
            tree: A distributed tensor, or anything that torch's pytrees know with some in it.

        Raises:
            WrongMesh: They are on another mesh than the pipe.
            WrongStream: They are on another stream.
            PipeEnded: The pipe was dropped.
        """
        _send(self._open(), tree)

    def recv(self) -> Any:
        """Gives what the functions send next, as distributed tensors.

        It is waited for in the processes, by the operations of the pipe's stream from here on, and
        not here; without a rule the first is waited for here, as it says what those that follow are
        like. What is never sent is waited for without end.

        Raises:
            OpFailed: Without a rule, where the function has failed or ended before the first.
            PipeEnded: The pipe was dropped.
        """
        return self._recv(self._open())

    def drop(self) -> None:
        """Ends the pipe."""
        self._ref = None

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def __repr__(self) -> str:
        return f"<Pipe of {self._name}{'' if self._ref else ', dropped'}>"

    def _open(self) -> OpaqueRef:
        if self._ref is None:
            raise PipeEnded(f"the pipe of {self._name} was dropped: create another one")
        return self._ref


def create_pipe(
    function: Callable[..., Any],
    *args: Any,
    propagate: Callable[[], Any] | None = None,
    depth: int = 2,
    mesh: DeviceMesh | None = None,
    **kwargs: Any,
) -> Pipe:
    """Runs a function in each process of a mesh, beside the operations there.

    Args:
        function: It gets a `PipeEnd` to send and receive by, and the arguments. It runs on a
            thread of its own until it returns, and should when the pipe has ended.
        args: Its arguments; tensors as those of a remote function.
        propagate: Gives tensors like those that it sends. Without it the first that are received
            say what all are like.
        depth: How many messages may wait on each way. Who sends more waits: the function, or the
            operations of the process.
        mesh: Where; on the active one where none is said. The pipe is of the active stream.
        kwargs: Its arguments by name.

    Raises:
        TensorError: No mesh is said, and none is active.
        TypeError: The function cannot be sent.

    Example:
        >>> def load(pipe, seed):
        ...     for batch in batches(seed):
        ...         pipe.send(batch)
        >>> batches = create_pipe(load, 7)
        >>> images, labels = batches.recv()
    """
    if depth < 1:
        raise ValueError(f"a pipe holds one message at least, not {depth}")
    with mesh_or_active(mesh).activate():
        ref = _begin(function, args, kwargs, depth)
    return Pipe(ref, getattr(function, "__qualname__", repr(function)), propagate)
