"""Pipes: functions that run concurrently with operations and exchange tensors with them."""

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
#: If the operand is lost, the pipe is lost, too, so that later operations do not wait forever.
_send = remote(_send_here, propagate="inspect").invalidating_objects()


class Pipe:
    """The program's end of a pipe; created by `create_pipe`.

    Dropping it ends the pipe: the function can then receive the messages already sent, and can no
    longer send.
    """

    def __init__(self, ref: OpaqueRef, name: str, propagate: Callable[[], Any] | None) -> None:
        self._ref: OpaqueRef | None = ref
        self._name = name
        rule: Any = "cached" if propagate is None else lambda _: propagate()
        self._recv = remote(_recv_here, propagate=rule)

    def send(self, tree: Any) -> None:
        """Send tensors to the function, in each process; do not wait.

        Args:
            tree: A distributed tensor, or any PyTorch pytree that contains some.

        Raises:
            WrongMesh: The tensors are on another mesh than the pipe.
            WrongStream: The tensors are on another stream than the pipe.
            PipeEnded: The pipe was dropped.
        """
        _send(self._open(), tree)

    def recv(self) -> Any:
        """Return the next message of the functions, as distributed tensors.

        The program does not wait for the message. In the processes, later operations on the stream
        of the pipe wait for it. Without a rule, the program waits for the first message, which
        determines the shapes of all others. If the message is never sent, the wait does not end.

        Raises:
            OpFailed: No rule is given, and the function failed or ended before the first message.
            PipeEnded: The pipe was dropped.
        """
        return self._recv(self._open())

    def drop(self) -> None:
        """End the pipe."""
        self._ref = None

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def __repr__(self) -> str:
        return f"<Pipe of {self._name}{'' if self._ref else ', dropped'}>"

    def _open(self) -> OpaqueRef:
        if self._ref is None:
            raise PipeEnded(f"the pipe of {self._name} was dropped: create a new one")
        return self._ref


def create_pipe(
    function: Callable[..., Any],
    *args: Any,
    propagate: Callable[[], Any] | None = None,
    depth: int = 2,
    mesh: DeviceMesh | None = None,
    **kwargs: Any,
) -> Pipe:
    """Run a function in each process of a mesh, concurrently with the operations there.

    Args:
        function: The function. It receives a `PipeEnd` for sending and receiving, and the
            arguments. It runs on a separate thread until it returns, and should return when the
            pipe has ended.
        args: The positional arguments of the function. Tensors are passed like those of remote
            functions.
        propagate: Returns tensors with the shapes and dtypes of the messages. Without it, the first
            message determines them.
        depth: The maximum number of pending messages in each direction. When it is reached, the
            sender blocks: the function, or the operations of the process.
        mesh: The processes. Default: the active mesh. The pipe belongs to the active stream.
        kwargs: The keyword arguments of the function.

    Raises:
        TensorError: No mesh is passed and none is active.
        TypeError: The function cannot be pickled.
        ValueError: `depth` is less than 1.

    Example:
        >>> def load(pipe, seed):
        ...     for batch in batches(seed):
        ...         pipe.send(batch)
        >>> batches = create_pipe(load, 7)
        >>> images, labels = batches.recv()
    """
    if depth < 1:
        raise ValueError(f"invalid depth {depth}: a pipe holds at least one message")
    with mesh_or_active(mesh).activate():
        ref = _begin(function, args, kwargs, depth)
    return Pipe(ref, getattr(function, "__qualname__", repr(function)), propagate)
