"""Who is running: the actor and the message that the current code serves.

Each message sets one context variable, so that tasks and nested calls see their own. A program
outside any actor is the root, which has no message.
"""

from __future__ import annotations

from contextvars import ContextVar

from mesh_core._meshes.shape import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._actors.cell import ActorCell
    from mesh_core._core import Message
    from mesh_core._ids import ActorAddr, ProcId
    from mesh_core._meshes.mesh import ProcMesh

__all__ = [
    "Context",
    "Instance",
    "Serving",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "serving",
]

_NOWHERE = Extent((), ())


class Serving:
    """One message being served by one actor."""

    __slots__ = ("cell", "extent", "message")

    def __init__(self, cell: ActorCell, message: Message | None, extent: Extent) -> None:
        self.cell: ActorCell = cell
        self.message: Message | None = message
        self.extent: Extent = extent

    @property
    def point(self) -> Point:
        """The receiver's place in the slice that was called; at its spawn, in its mesh."""
        if self.message is None:
            return self.cell.point
        return Point(self.message.rank, self.extent)


_serving: ContextVar[Serving | None] = ContextVar("mesh_core.serving", default=None)
serving = _serving.get
set_serving = _serving.set


class Instance:
    """The actor that runs, as it sees itself."""

    __slots__ = ("_cell",)

    def __init__(self, cell: ActorCell | None) -> None:
        self._cell = cell

    @property
    def name(self) -> str:
        """The name that its mesh was spawned under; `root` for the program itself."""
        return "root" if self._cell is None else self._cell.name

    @property
    def class_name(self) -> str:
        """The qualified name of its class."""
        return "root" if self._cell is None else self._cell.class_name

    @property
    def actor_id(self) -> ActorAddr:
        """Its address, unique in the job: host, process, port."""
        from mesh_core._ids import ActorAddr
        from mesh_core._program.runtime import runtime

        port = 0 if self._cell is None else self._cell.port
        return ActorAddr(runtime().address(port), self.name)

    @property
    def proc_id(self) -> ProcId:
        """The address of its process."""
        return self.actor_id.proc_id

    @property
    def rank(self) -> Point:
        """Its place in the mesh that it was spawned in, whatever slice is called."""
        return Point(0, _NOWHERE) if self._cell is None else self._cell.point

    @property
    def proc(self) -> ProcMesh:
        """Its own process, as a mesh of one."""
        from mesh_core._meshes.mesh import this_proc

        return this_proc()

    @property
    def proc_mesh(self) -> ProcMesh:
        """All processes that its mesh was spawned on."""
        from mesh_core._meshes.mesh import this_proc

        return this_proc() if self._cell is None else self._cell.procs

    @property
    def creator(self) -> str:
        """The address of the actor that spawned it."""
        return "" if self._cell is None else self._cell.owner_name

    def abort(self, reason: str | None = None) -> None:
        """Fails this actor: its owner is told; the answer of the current call is still sent."""
        self._require().abort(reason)

    kill = abort

    def stop(self, reason: str | None = None) -> None:
        """Stops this actor once the current message is served; its cleanup runs."""
        self._require().stop_soon(reason)

    def _require(self) -> ActorCell:
        if self._cell is None:
            raise RuntimeError("the root program is no actor: call this inside an endpoint")
        return self._cell

    def __repr__(self) -> str:
        if self._cell is None:
            return "<root>"
        return f"<root>.<{self._cell.class_name} {self._cell.name}{self._cell.point}>"


class Context:
    """The running actor, and the place that its current message addresses."""

    __slots__ = ("actor_instance", "message_rank")

    def __init__(self, actor_instance: Instance, message_rank: Point) -> None:
        self.actor_instance: Instance = actor_instance
        self.message_rank: Point = message_rank

    def __reduce__(self) -> Any:
        raise TypeError("a context belongs to its process: send what you need of it instead")


def context() -> Context:
    """Gives the current context; in the program itself it starts Mesh on first use.

    Tasks that an endpoint starts have its context. A thread has it when it is started with
    `contextvars.copy_context().run`, or by `asyncio.to_thread`; any other runs as the program does,
    outside of every actor.
    """
    current = serving()
    if current is None:
        from mesh_core._program.runtime import runtime

        runtime()
        return Context(Instance(None), Point(0, _NOWHERE))
    return Context(Instance(current.cell), current.point)


def current_rank() -> Point:
    """Gives the place of this actor in the slice that the current message addressed."""
    current = serving()
    return Point(0, _NOWHERE) if current is None else current.point


def current_size() -> dict[str, int]:
    """Gives the sizes of the slice that the current message addressed."""
    return dict(current_rank().extent)


def current_actor_name() -> str:
    """Gives the address of the running actor."""
    return context().actor_instance.actor_id
