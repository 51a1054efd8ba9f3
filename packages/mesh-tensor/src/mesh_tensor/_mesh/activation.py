"""Which mesh new tensors are made on: in this thread or task, until the `with` ends.

torch asks a mode of the thread about each operation. There is one such mode in a thread while any
mesh is active in it; which mesh that is for the running task, a context variable says.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

import torch

from mesh_tensor._errors import TensorError, WrongStream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from mesh_tensor._dispatch.mode import DispatchMode
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._streams.stream import Stream

__all__ = [
    "activate",
    "active_mesh",
    "active_stream",
    "check_stream",
    "get_active_mesh",
    "mesh_or_active",
    "no_mesh",
]

M = TypeVar("M", "DeviceMesh", None)

#: Always that of the active stream.
active_mesh: ContextVar[DeviceMesh | None] = ContextVar("active_mesh", default=None)
active_stream: ContextVar[Stream | None] = ContextVar("active_stream", default=None)


class _Modes(threading.local):
    def __init__(self) -> None:
        self.users = 0
        self.mode: DispatchMode | None = None

    def enter(self) -> None:
        self.users += 1
        if self.users == 1:
            # Not at the top: operations ask this module which mesh is active.
            from mesh_tensor._dispatch.mode import DispatchMode

            self.mode = DispatchMode()  # type: ignore[no-untyped-call]
            self.mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            assert self.mode is not None
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.mode = None


_modes = _Modes()


@contextmanager
def activate(mesh: M) -> Iterator[M]:
    """Makes a mesh the one that new tensors are made on; `None` makes them here."""
    token = active_mesh.set(None if mesh is None else mesh._on(active_stream.get()))
    _modes.enter()
    try:
        yield mesh
    finally:
        _modes.leave()
        active_mesh.reset(token)


def get_active_mesh() -> DeviceMesh | None:
    """Gives the mesh that new tensors are made on, or None where they are made in this process."""
    mesh = active_mesh.get()
    return None if mesh is None else mesh._on(None)


def mesh_or_active(mesh: DeviceMesh | None) -> DeviceMesh:
    """Gives the mesh that is said, or the active one where none is; as the active stream has it.

    Raises:
        TensorError: There is neither.
    """
    goal = mesh or active_mesh.get()
    if goal is None:
        raise TensorError("no mesh is active: say which one, or do it within mesh.activate()")
    return goal._on(active_stream.get())


def check_stream(mesh: DeviceMesh) -> None:
    """Looks whether tensors of a mesh are of the stream that is active, if one is.

    Raises:
        WrongStream: They are not, and this is not the backward of autograd.
    """
    stream, own = active_stream.get(), mesh._lane.stream
    if stream is None or stream is own or torch._C._current_graph_task_id() != -1:
        return
    raise WrongStream(
        f"a tensor of stream {own.name} is used while {stream.name} is active: borrow it with "
        "stream.borrow, or do this outside of stream.activate()"
    )


class _NoMesh:
    """No mesh: within `with no_mesh.activate()` tensors are made in this process."""

    def activate(self) -> AbstractContextManager[None]:
        """Has tensors made in this process until the `with` ends."""
        return activate(None)


no_mesh: _NoMesh = _NoMesh()
