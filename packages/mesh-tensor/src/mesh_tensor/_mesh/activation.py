"""The mesh on which new tensors are created, per thread or task, until the `with` block ends.

PyTorch calls the dispatch mode of a thread for each operation. A thread has one such mode while any
mesh is active in it; a context variable holds the active mesh of the running task.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

import torch

from mesh_tensor._errors import TensorError, WrongStream
from mesh_tensor._mesh.dispatch_mode import DispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._streams.stream import Stream

__all__ = [
    "activate",
    "active_mesh",
    "active_stream",
    "backward_in_this_thread",
    "check_stream",
    "get_active_mesh",
    "mesh_or_active",
    "no_mesh",
]

M = TypeVar("M", "DeviceMesh", None)

#: The active mesh, always in the variant that belongs to the active stream.
active_mesh: ContextVar[DeviceMesh | None] = ContextVar("active_mesh", default=None)
active_stream: ContextVar[Stream | None] = ContextVar("active_stream", default=None)


class _Modes(threading.local):
    def __init__(self) -> None:
        self.users = 0
        self.mode: AbstractContextManager[None] | None = None

    def enter(self) -> None:
        self.users += 1
        if self.users == 1:
            self.mode = _mode()
            self.mode.__enter__()

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            assert self.mode is not None
            self.mode.__exit__(None, None, None)
            self.mode = None


@contextmanager
def _mode() -> Iterator[None]:
    with backward_in_this_thread(), DispatchMode():  # type: ignore[no-untyped-call]
        yield


def backward_in_this_thread() -> AbstractContextManager[None]:
    """Run backward passes in the calling thread within the `with` block.

    By default, autograd runs them in another thread for tensors on a device. No mesh is active in
    that thread, and a trace does not record its operations.
    """
    return torch.autograd.set_multithreading_enabled(False)


_modes = _Modes()


@contextmanager
def activate(mesh: M) -> Iterator[M]:
    """Make a mesh the one on which new tensors are created; None creates them in this process."""
    token = active_mesh.set(None if mesh is None else mesh._on(active_stream.get()))
    _modes.enter()
    try:
        yield mesh
    finally:
        _modes.leave()
        active_mesh.reset(token)


def get_active_mesh() -> DeviceMesh | None:
    """Return the mesh on which tensors are created, or None if they are created in this process."""
    mesh = active_mesh.get()
    return None if mesh is None else mesh._on(None)


def mesh_or_active(mesh: DeviceMesh | None) -> DeviceMesh:
    """Return the given mesh, or the active mesh if it is None, as seen by the active stream.

    Raises:
        TensorError: No mesh is given and none is active.
    """
    goal = mesh or active_mesh.get()
    if goal is None:
        raise TensorError("no mesh is active: pass a mesh, or use mesh.activate()")
    return goal._on(active_stream.get())


def check_stream(mesh: DeviceMesh) -> None:
    """Check that the tensors of a mesh belong to the active stream, if a stream is active.

    Raises:
        WrongStream: They do not, and this is not a backward pass of autograd.
    """
    stream, own = active_stream.get(), mesh._stream_slots.stream
    if stream is None or stream is own or torch._C._current_graph_task_id() != -1:
        return
    raise WrongStream(
        f"a tensor of stream {own.name} is used while {stream.name} is active: borrow it with"
        " stream.borrow, or use it outside of stream.activate()"
    )


class _NoMesh:
    """The absence of a mesh: `with no_mesh.activate()` creates tensors in this process."""

    def activate(self) -> AbstractContextManager[None]:
        """Create tensors in this process until the `with` block ends."""
        return activate(None)


no_mesh: _NoMesh = _NoMesh()
