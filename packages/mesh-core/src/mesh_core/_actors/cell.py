"""One actor in its process: its messages, its answers, its end.

Who runs the messages is the business of `_serve_thread` and `_serve_loop`; what a message means,
and what follows from a failure, is here and the same for both.
"""

from __future__ import annotations

import os

from mesh_core._actors.actor import endpoints_of, member_of
from mesh_core._actors.context import Serving
from mesh_core._actors.termination import Ending
from mesh_core._calls.endpoint import EndpointProperty
from mesh_core._calls.port_transit import drop_ports, note_ports
from mesh_core._configuration.config import effective
from mesh_core._errors import MeshError
from mesh_core._meshes.activation import tensor_layer
from mesh_core._meshes.shape import Extent, Point
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import (
    ACTOR_FAILED,
    BY_LAYER,
    EXPLICIT_PORT,
    INTERNAL,
    RAISED,
    STOPPED,
    UNDECORATED,
    proc_name,
    read_call_meta,
)
from mesh_core._supervision.failure import FailureDetail

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from typing import Any

    from mesh_core._actors.guards import Guard
    from mesh_core._calls.channel import Port
    from mesh_core._core import Engine, Message
    from mesh_core._meshes.mesh import ProcMesh
    from mesh_core._meshes.proc_table import ProcTable
    from mesh_core._meshes.shape import Region
    from mesh_core._program.runtime import Runtime
    from mesh_core._supervision.ownership import Ask

__all__ = ["ActorCell", "ActorFailure", "Plan", "SpawnOrder"]


class SpawnOrder:
    """What a process needs to know to start an actor.

    Attributes:
        cls: The class.
        args: Its arguments.
        kwargs: Its arguments by keyword.
        name: The name of the mesh.
        table: The processes.
        region: Which of them the mesh is on.
        owner: Who spawned it: process and port.
        owner_name: The same for humans.
        window: How many messages a sender may have outstanding.
    """

    __slots__ = (
        "args",
        "cls",
        "kwargs",
        "name",
        "owner",
        "owner_name",
        "region",
        "table",
        "window",
    )

    def __init__(
        self,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        table: ProcTable,
        region: Region,
        owner: tuple[int, int],
        owner_name: str,
        window: int,
    ) -> None:
        self.cls: type = cls
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self.name: str = name
        self.table: ProcTable = table
        self.region: Region = region
        self.owner: tuple[int, int] = owner
        self.owner_name: str = owner_name
        self.window: int = window


def _unbound(cls: type, name: str) -> Any:
    """Gives a method as a function that takes the instance first, of whatever kind it is."""
    try:
        member: Any = member_of(cls, name)
    except AttributeError:
        return None
    if not isinstance(member, (staticmethod, classmethod)):
        return member
    inner = member.__func__

    def call(instance: Any, *args: Any, **kwargs: Any) -> Any:
        first = () if isinstance(member, staticmethod) else (type(instance),)
        return inner(*first, *args, **kwargs)

    call.__wrapped__ = inner  # type: ignore[attr-defined]
    return call


class ActorFailure(Exception):
    """Why an actor ends: its `__cause__`, or its text when there is none."""


class Plan:
    """What the actor does about one kind of message; worked out once."""

    __slots__ = (
        "error",
        "extent",
        "function",
        "is_async",
        "is_concurrent",
        "is_explicit",
        "is_internal",
        "name",
    )

    def __init__(self, name: str, flags: int, extent: Extent, member: Any) -> None:
        self.name: str = name
        self.extent: Extent = extent
        self.is_internal: bool = bool(flags & INTERNAL)
        self.is_explicit: bool = bool(flags & EXPLICIT_PORT)
        self.is_concurrent: bool = False
        self.function: Any = member
        self.error: Exception | None = None
        if isinstance(member, EndpointProperty):
            self.function = member.method
            self.is_concurrent = member.is_concurrent
            self.is_explicit = member.explicit_response_port
            self.is_async: bool = member.is_async
        else:
            code = getattr(getattr(member, "__wrapped__", member), "__code__", None)
            self.is_async = code is not None and bool(code.co_flags & 0x80)
            if not self.is_internal and (member is None or not flags & UNDECORATED):
                self.error = MeshError(f"actor has no endpoint {name!r}: check both sides' code")
        if flags & BY_LAYER and self.error is None:
            self.function = tensor_layer().serve(self.function, self.is_async)

    def put_around(self, guard: Guard) -> None:
        """Has endpoints called through a guard."""
        if self.error is None and not self.is_internal:
            self.function = guard(self.function, self.is_async)


class ActorCell:
    """One actor of this process."""

    # What it runs before it serves messages.
    first_name = "__init__"

    # Messages that were taken from the mailbox and not begun.
    left: deque[Message]

    def __init__(self, runtime: Runtime, port: int, rank: int, order: SpawnOrder) -> None:
        self.runtime = runtime
        self.engine: Engine = runtime.engine
        self.port = port
        # As messages say who has sent them.
        self.sender: bytes = port.to_bytes(8, "little")
        self.order = order
        self.rank = rank
        self.name: str = order.name
        self.class_name: str = order.cls.__qualname__
        self.owner_name: str = order.owner_name
        self.instance: Any = None
        self.plans: dict[bytes, Plan] = {}
        self.running_name: str = self.first_name
        # Messages served so far: a stop waits as long as this goes on growing.
        self.served_count = 0
        self.ending: Ending = Ending(self)
        self.cancelled: set[tuple[int, int]] = set()
        self.abort_error: ActorFailure | None = None
        # The message that the actor has failed of.
        self.unanswered: Message | None = None
        self.is_stop_wanted: bool = False
        # Whether it was the actor itself that wanted to stop.
        self.is_leaving: bool = False
        # Why it was told to stop, where that is not its owner's business alone.
        self.stop_reason: str | None = None
        self.threshold: int = effective().segment_threshold_bytes
        region = order.region
        self.point: Point = Point(rank, Extent(region.labels, region.sizes))
        self.failure_code = ACTOR_FAILED

    @property
    def procs(self) -> ProcMesh:
        """The processes that its mesh was spawned on."""
        from mesh_core._meshes.mesh import ProcMesh

        return ProcMesh(self.order.table, self.order.region)

    def plan(self, meta: bytes) -> Plan:
        """Gives what to do about messages with this meta."""
        plan = self.plans.get(meta)
        if plan is None:
            name, flags, extent = read_call_meta(meta)
            member = endpoints_of(type(self.instance)).get(name)
            if member is None and flags & UNDECORATED:
                member = _unbound(type(self.instance), name)
            plan = Plan(name, flags, extent, member)
            for guard in self.runtime.guards:
                plan.put_around(guard)
            self.plans[meta] = plan
        return plan

    def is_exclusive(self, current: Serving) -> bool:
        """Says whether no other message is served before the current one has ended."""
        message = current.message
        return message is None or not self.plan(message.meta).is_concurrent

    def has_queued(self, call: tuple[int, int]) -> bool:
        """Says whether a call, by its caller's process and port, waits for its turn."""
        if self.engine.has_queued(self.port, *call):
            return True
        return any((m.from_proc, m.from_port) == call for m in tuple(self.left))

    def is_held_by(self, current: Serving) -> bool:
        """Says whether the actor waits when this thread does, which runs in that context."""
        raise NotImplementedError

    def is_on_loop(self) -> bool:
        """Says whether this thread is the event loop that the actor runs on."""
        return False

    def needs_loop(self) -> bool:
        """Says whether the actor serves messages on the event loop of its process."""
        return False

    def task_of(self, call: tuple[int, int] | None, is_exclusive: bool) -> asyncio.Task[Any] | None:
        """Gives the task that serves a call; the actor's own when that is exclusive."""
        return None

    def serving(self, message: Message, plan: Plan) -> Serving:
        """Makes the context of a message."""
        self.running_name = plan.name
        return Serving(self, message, plan.extent)

    def arguments(self, message: Message, plan: Plan) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unpickles the arguments of a message; a port comes first where the endpoint wants one."""
        if plan.error is not None:
            raise plan.error
        from mesh_core._program.runtime import value_of

        args, kwargs = value_of(message)
        if plan.is_explicit:
            args = (self.answer_port(message), *args)
        return args, kwargs

    def answer_port(self, message: Message) -> Port[Any]:
        """Makes the port that an endpoint with an explicit port answers on."""
        from mesh_core._calls.channel import AnswerPort

        return AnswerPort(message)

    def answer(self, message: Message, value: Any) -> None:
        """Sends a result."""
        if message.from_port:
            try:
                body, buffers = encode_value(value, self.threshold)
                note_ports(body, [(message.from_proc, 0)])
                self.engine.answer(message, 0, body, buffers)
            except Exception as error:
                self.answer_error(message, error)

    def answer_error(self, message: Message, error: BaseException) -> None:
        """Sends an exception instead of a result."""
        self.engine.answer(message, RAISED, encode_exception(error))

    def settle_error(self, message: Message, plan: Plan, error: BaseException) -> None:
        """Sends an exception to who waits for it.

        Raises:
            ActorFailure: Nobody waits: the actor fails of it.
        """
        if message.from_port and not plan.is_explicit:
            self.answer_error(message, error)
            return
        self.unanswered = message
        raise self.fails_of(error)

    def fails_of(self, error: BaseException) -> ActorFailure:
        """Makes the failure to raise; noted, in case that a late cancellation overtakes it."""
        failure = ActorFailure()
        failure.__cause__ = error
        self.abort_error = failure
        return failure

    def take_cancelled(self, message: Message) -> bool:
        """Says whether the caller of a message that was not started has given up."""
        key = (message.from_proc, message.from_port)
        if key in self.cancelled:
            self.cancelled.discard(key)
            drop_ports(message)
            return True
        return False

    def has_supervise(self) -> bool:
        """Says whether the actor wants to hear of failures."""
        return getattr(self.order.cls, "__supervise__", None) is not None

    def abort(self, reason: str | None) -> None:
        """Fails the actor when the current message has been answered."""
        self.abort_error = ActorFailure(reason or "the actor called abort()")

    def stop_soon(self, reason: str | None) -> None:
        """Stops the actor when the current message has been answered."""
        self.is_leaving = self.is_stop_wanted = True

    def check_wishes(self) -> None:
        """Does what the actor has asked for itself.

        Raises:
            ActorFailure: It has aborted.
        """
        if self.abort_error is not None:
            raise self.abort_error

    # The end. Others may ask for it from any thread; the drivers carry it out where the actor runs.

    @property
    def is_ended(self) -> bool:
        """Whether nothing of the actor is left."""
        return self.ending.is_over.is_set()

    def fail_of(self, error: BaseException) -> None:
        """Fails the actor now, in the middle of what it does: something that it owns has failed."""
        failure = ActorFailure()
        failure.__cause__ = error
        self.is_stop_wanted = True
        self.ending.begin(failure)
        self.cut_short()

    def halt(self) -> None:
        """Stops the actor now: what is queued is dropped, what runs is interrupted."""
        self.is_stop_wanted = True
        self.ending.begin(None)
        self.cut_short()

    # What the drivers must have.

    def start(self, spawn_message: Message) -> None:
        """Makes the actor and serves its messages; returns at once."""
        raise NotImplementedError

    def cancel(self, message: Message) -> None:
        """Ends the call that a caller has given up, or remembers that it need not start."""
        raise NotImplementedError

    def supervise_soon(self, ask: Ask) -> None:
        """Calls `__supervise__` as soon as the actor can be asked."""
        raise NotImplementedError

    def cut_short(self) -> None:
        """Raises `CallCancelled` in the endpoint that runs."""
        raise NotImplementedError

    def running_messages(self) -> list[Message]:
        """Gives the messages that were taken from the mailbox and are not answered."""
        raise NotImplementedError

    def detail(self, error: ActorFailure | None) -> FailureDetail:
        """Says why the actor takes no more messages; each call with an error is a new failure."""
        identity = self.runtime.identity
        fields = {
            "mesh_name": self.name,
            "actor": self.class_name,
            "rank": self.rank,
            "point": dict(self.point),
            "host": identity.host_name,
            "proc": proc_name(self.runtime.me),
            "pid": os.getpid(),
        }
        if error is None:
            return FailureDetail(0, STOPPED, {**fields, "reason": self.stop_reason})
        cause = error.__cause__
        if cause is None:
            fields["reason"] = str(error)
        encoded = None if cause is None else encode_exception(cause)
        failure_id = self.engine.new_port()
        return FailureDetail(failure_id, ACTOR_FAILED, fields, encoded, self.order.owner[0])
