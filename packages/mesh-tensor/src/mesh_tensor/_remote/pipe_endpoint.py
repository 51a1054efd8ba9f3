"""Pipes in a process: a function on a separate thread, and the messages to and from it."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._errors import PipeEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PipeEnd", "ServedPipe"]


class _Channel:
    """The pending messages, in both directions.

    Args:
        depth: The maximum number of pending messages in each direction.
    """

    def __init__(self, depth: int) -> None:
        self._turn = threading.Condition()
        self._depth = depth
        self._queues: tuple[deque[Any], deque[Any]] = (deque(), deque())
        #: Whether the program (0) and the function (1) are done with the channel.
        self._are_over = [False, False]
        self._error: Exception | None = None

    def put(self, side: int, message: Any) -> bool:
        """Send a message, and wait for capacity; return whether the peer can still receive it."""
        queue = self._queues[side]
        with self._turn:
            self._turn.wait_for(lambda: any(self._are_over) or len(queue) < self._depth)
            if self._are_over[1 - side]:
                return False
            queue.append(message)
            self._turn.notify_all()
        return True

    def take(self, side: int) -> Any:
        """Return the next message from the other side; wait for it.

        Raises:
            PipeEnded: No more messages can arrive.
        """
        queue = self._queues[1 - side]
        with self._turn:
            self._turn.wait_for(lambda: queue or self._are_over[1 - side])
            if not queue:
                raise PipeEnded("the other end of the pipe has exited") from self._error
            message = queue.popleft()
            self._turn.notify_all()
        return message

    def end(self, side: int, error: Exception | None = None) -> None:
        """Record that one side is done."""
        with self._turn:
            self._are_over[side] = True
            self._error = self._error or error
            self._turn.notify_all()


class PipeEnd:
    """The end of a pipe that a function in a process uses.

    Iterating over it yields the messages of the program until the program drops the pipe.
    """

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel

    def recv(self) -> Any:
        """Return the next message of the program, as local tensors; wait for it.

        Raises:
            PipeEnded: The program has dropped the pipe.
        """
        return self._channel.take(1)

    def send(self, tree: Any) -> None:
        """Send local tensors to the program; wait while too many messages are pending.

        Raises:
            PipeEnded: The program has dropped the pipe.
        """
        # Copy the tensors, so that later writes of the function are not visible to the program.
        message = pytree.tree_map_only(torch.Tensor, lambda one: one.detach().clone(), tree)
        if not self._channel.put(1, message):
            raise PipeEnded("the program has dropped the pipe")

    def __iter__(self) -> Iterator[Any]:
        try:
            while True:
                yield self.recv()
        except PipeEnded:
            return


class ServedPipe:
    """A function that runs in a process, as an object for the program's operations.

    Deleting it ends the pipe.
    """

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], depth: int
    ) -> None:
        self._name = getattr(function, "__qualname__", repr(function))
        self._channel = channel = _Channel(depth)
        context = copy_context()
        # The thread must not hold a reference to this object.
        threading.Thread(
            target=lambda: context.run(_serve, channel, function, args, kwargs),
            name=f"mesh-tensor-pipe-{self._name}",
            daemon=True,
        ).start()

    def send(self, tree: Any) -> None:
        """Pass a message of the program to the function, if the function is still running."""
        clone = pytree.tree_map_only(torch.Tensor, lambda one: one.detach().clone(), tree)
        self._channel.put(0, clone)

    def recv(self) -> Any:
        """Return the next message of the function; wait for it.

        Raises:
            PipeEnded: The function has returned or failed. The message names the failed line.
        """
        try:
            return self._channel.take(0)
        except PipeEnded as ended:
            error = ended.__cause__
            if error is None:
                raise PipeEnded(f"{self._name} has ended: it sends no more messages") from None
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'
            what = f"{type(error).__name__}: {error}"
            raise PipeEnded(f"{self._name} failed: {what}\n  {where}\n    {frame.line}") from error

    def __del__(self) -> None:
        channel = getattr(self, "_channel", None)
        if channel is not None:
            channel.end(0)


def _serve(
    channel: _Channel, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> None:
    error: Exception | None = None
    try:
        function(PipeEnd(channel), *args, **kwargs)
    except PipeEnded:
        pass
    except Exception as raised:
        error = raised
    except BaseException as raised:
        error = RuntimeError(f"{type(raised).__name__}: {raised}")
    finally:
        channel.end(1, error)
