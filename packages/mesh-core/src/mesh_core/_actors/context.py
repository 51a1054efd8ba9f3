"""Current context, as users see it: the running actor and the message that it serves.

Code outside of any actor runs as the root, which has no message.
"""

from __future__ import annotations

import os
import time

from mesh_core._ids import ActorAddr
from mesh_core._meshes.proc_mesh import this_proc
from mesh_core._runtime.runtime import runtime
from mesh_core._runtime.serving import serving
from mesh_core._shapes.shape import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from typing import Any

    from mesh_core._actors.cell import ActorCell
    from mesh_core._ids import ProcId
    from mesh_core._meshes.proc_mesh import ProcMesh

__all__ = [
    "Context",
    "Instance",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
]

_NOWHERE = Extent((), ())
# Parts of the names of variables whose values are secrets.
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


class Instance:
    """The running actor, as seen by its own code."""

    __slots__ = ("_cell",)

    def __init__(self, cell: ActorCell | None) -> None:
        self._cell = cell

    @property
    def name(self) -> str:
        """The name that the mesh was spawned with; `root` for the program itself."""
        return "root" if self._cell is None else self._cell.name

    @property
    def class_name(self) -> str:
        """The qualified name of the actor class."""
        return "root" if self._cell is None else self._cell.class_name

    @property
    def actor_id(self) -> ActorAddr:
        """The address of the actor, unique in the job: host, process, port."""
        port = 0 if self._cell is None else self._cell.port
        return ActorAddr(runtime().address(port), self.name)

    @property
    def proc_id(self) -> ProcId:
        """The id of the actor's process."""
        return self.actor_id.proc_id

    @property
    def rank(self) -> Point:
        """The rank in the mesh that the actor was spawned in, independent of the called slice."""
        return Point(0, _NOWHERE) if self._cell is None else self._cell.point

    @property
    def proc(self) -> ProcMesh:
        """The process of the actor, as a mesh of one process."""
        return this_proc()

    @property
    def proc_mesh(self) -> ProcMesh:
        """All processes that the mesh of the actor was spawned on."""
        return this_proc() if self._cell is None else self._cell.procs

    @property
    def creator(self) -> str:
        """The address of the actor that spawned this one."""
        return "" if self._cell is None else self._cell.owner_name

    def abort(self, reason: str | None = None) -> None:
        """Fail this actor after the current call has been answered, and notify its owner."""
        self._require().abort(reason)

    kill = abort

    def stop(self, reason: str | None = None) -> None:
        """Stop this actor after the current message is served; its cleanup runs."""
        self._require().stop_soon(reason)

    def _require(self) -> ActorCell:
        if self._cell is None:
            raise RuntimeError("the root program is not an actor: call this inside an endpoint")
        return self._cell

    def __repr__(self) -> str:
        if self._cell is None:
            return "<root>"
        return f"<root>.<{self._cell.class_name} {self._cell.name}{self._cell.point}>"


class Context:
    """The running actor and the rank that its current message addresses."""

    __slots__ = ("actor_instance", "message_rank")

    def __init__(self, actor_instance: Instance, message_rank: Point) -> None:
        self.actor_instance: Instance = actor_instance
        self.message_rank: Point = message_rank

    def time(self) -> float:
        """Return the time in seconds since the epoch; a replay returns the recorded time."""
        return float(_read("time", "", time.time))

    def getenv(self, name: str, default: str | None = None) -> str | None:
        """Return an environment variable; a replay returns the recorded value.

        Values of variables whose names suggest secrets are not recorded, and a replay reads its own
        environment instead.
        """
        if any(secret in name.upper() for secret in _SECRETS):
            return os.environ.get(name, default)
        found = _read("environ", name, lambda: os.environ.get(name))
        if found is None or isinstance(found, str):
            return default if found is None else found
        # The value was redacted from the recording that is replayed.
        from mesh_core._recording.redacted import Redacted  # noqa: PLC0415

        redacted: Any = Redacted(name)
        return redacted  # type: ignore[no-any-return]

    def random(self) -> Random:
        """Return a new random number generator; in a replay, it yields the recorded numbers."""
        from random import Random, SystemRandom  # noqa: PLC0415

        return Random(_read("random", "seed", lambda: SystemRandom().getrandbits(63)))

    def __reduce__(self) -> Any:
        raise TypeError("a context cannot be sent to another process: send the fields you need")


def context() -> Context:
    """Return the current context; in the program itself, the first call starts Mesh.

    Tasks that an endpoint starts inherit its context. A thread inherits it if it is started with
    `contextvars.copy_context().run` or by `asyncio.to_thread`. Any other thread runs like the
    program, outside of all actors.
    """
    current = serving()
    if current is None:
        runtime()
        return Context(Instance(None), Point(0, _NOWHERE))
    return Context(Instance(current.cell), current.point)


def _read(source: str, key: str, produce: Callable[[], Any]) -> Any:
    """Read a value for the running actor, through its recording or replay."""
    current = serving()
    if current is None or current.cell.reader is None:
        return produce()
    return current.cell.reader.read(current.number, source, key, produce)


def current_rank() -> Point:
    """Return the rank of this actor in the slice that the current message addressed."""
    current = serving()
    return Point(0, _NOWHERE) if current is None else current.point


def current_size() -> dict[str, int]:
    """Return the sizes of the slice that the current message addressed, by dimension."""
    return dict(current_rank().extent)


def current_actor_name() -> str:
    """Return the address of the running actor."""
    return context().actor_instance.actor_id
