"""One actor in its process: its messages, its replies and its termination.

`ThreadCell` and `LoopCell` run the messages. This module interprets messages and handles failures,
which is the same for both.
"""

from __future__ import annotations

import os

from mesh_core._actors.termination import Ending
from mesh_core._calls.actor import endpoints_of, member_of
from mesh_core._calls.channel import ReplyPort
from mesh_core._calls.endpoint_decorators import EndpointProperty
from mesh_core._calls.port_transit import drop_ports, note_ports
from mesh_core._configuration.config import effective
from mesh_core._core import Targets
from mesh_core._errors import MeshError
from mesh_core._meshes.proc_mesh import ProcMesh
from mesh_core._runtime.runtime import value_of
from mesh_core._runtime.serving import Serving, serving
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import (
    ACTOR_FAILED,
    BY_LAYER,
    CALL,
    EXPLICIT_PORT,
    FREEZE,
    INTERNAL,
    RAISED,
    STOPPED,
    UNDECORATED,
    proc_name,
    read_call_meta,
)
from mesh_core._shapes.shape import Extent, Point
from mesh_core._supervision.failure import FailureDetail
from mesh_core._tensor_engine import tensor_engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from typing import Any

    from mesh_core._actors.interceptors import EndpointInterceptor
    from mesh_core._calls.channel import Port
    from mesh_core._core import Engine, Message
    from mesh_core._meshes.spawn_request import SpawnRequest
    from mesh_core._recording.actor_recording import ActorRecording
    from mesh_core._recording.reader import ContextReader
    from mesh_core._runtime.open_message import OpenMessage
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._supervision.supervise_call import SuperviseCall

__all__ = ["ActorCell", "ActorFailure", "Plan"]


_FREEZE = bytes([INTERNAL]) + FREEZE.encode() + b"\0"
# The message of the error that `signal.signal` raises on every thread except the main thread.
_SIGNAL_REFUSED = "signal only works in main thread"
_SIGNAL_HINT = (
    "endpoints do not run on the main thread of their process: set signal handlers in the function "
    "bootstrap=... of spawn_procs, which does"
)


def _unbound(cls: type, name: str) -> Any:
    """Return a method as a function that takes the instance first; None if it does not exist."""
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


def _served_number() -> int:
    """Return the number of the message that this thread or task serves in its recording."""
    current = serving()
    return 0 if current is None else current.number


class ActorFailure(Exception):
    """Reason for the failure of an actor: its `__cause__`, or its text if it has no cause."""


class Plan:
    """How the actor handles one kind of message; computed once per kind."""

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
            self.function = tensor_engine().serve(self.function, self.is_async)

    def intercept(self, interceptor: EndpointInterceptor) -> None:
        """Wrap the endpoint with an interceptor."""
        if self.error is None and not self.is_internal:
            self.function = interceptor(self.function, self.is_async)


class ActorCell:
    """One actor of this process."""

    # The method that runs before the actor serves messages.
    first_name = "__init__"

    # Messages that were taken from the mailbox and have not been started.
    left: deque[Message]

    def __init__(self, runtime: Runtime, port: int, rank: int, request: SpawnRequest) -> None:
        self.runtime = runtime
        self.engine: Engine = runtime.engine
        self.port = port
        # The encoding of the sender in messages.
        self.sender: bytes = port.to_bytes(8, "little")
        self.request = request
        # The message with the spawn request, until the actor is created.
        self.spawn_message: Message | None = None
        self.rank = rank
        self.name: str = request.name
        self.class_name: str = request.cls.__qualname__
        self.owner_name: str = request.owner_name
        self.instance: Any = None
        # The recording of the actor, if the actor is recorded.
        self.recording: ActorRecording | None = None
        # The actor reads values from its context through this reader, which records them.
        self.reader: ContextReader | None = None
        self.plans: dict[bytes, Plan] = {}
        # The channels that the actor has opened, by port, numbered from 1.
        self._channels: dict[int, int] = {}
        self.running_name: str = self.first_name
        # The number of messages served so far; a draining stop waits as long as it increases.
        self.served_count = 0
        self.ending: Ending = Ending(self)
        self.cancelled: set[tuple[int, int]] = set()
        self.abort_error: ActorFailure | None = None
        # The message whose failure made the actor fail.
        self.unanswered: Message | None = None
        self.is_stop_wanted: bool = False
        # Whether the actor waits because of `freeze`.
        self.is_frozen: bool = False
        # Whether the actor requested the stop itself.
        self.is_leaving: bool = False
        # The reason for the stop, if the stop was requested with one.
        self.stop_reason: str | None = None
        self.threshold: int = effective().segment_threshold_bytes
        region = request.region
        self.point: Point = Point(rank, Extent(region.labels, region.sizes))
        self.failure_code = ACTOR_FAILED

    @property
    def procs(self) -> ProcMesh:
        """The processes that the mesh of the actor was spawned on."""
        return ProcMesh(self.request.table, self.request.region)

    def plan(self, meta: bytes) -> Plan:
        """Return the plan for messages with this metadata."""
        plan = self.plans.get(meta)
        if plan is None:
            name, flags, extent = read_call_meta(meta)
            member = endpoints_of(type(self.instance)).get(name)
            if member is None and flags & UNDECORATED:
                member = _unbound(type(self.instance), name)
            plan = Plan(name, flags, extent, member)
            for interceptor in self.runtime.interceptors:
                plan.intercept(interceptor)
            self.plans[meta] = plan
        return plan

    def channel_number(self, port: int) -> int:
        """Return the number of a channel that the actor opens."""
        return self._channels.setdefault(port, len(self._channels) + 1)

    def is_exclusive(self, current: Serving) -> bool:
        """Return whether the actor serves no other message until the current one has ended."""
        message = current.message
        return message is None or not self.plan(message.meta).is_concurrent

    def has_queued(self, call: tuple[int, int]) -> bool:
        """Return whether a call, given by the process and port of its caller, is queued."""
        if self.engine.has_queued(self.port, *call):
            return True
        return any((m.from_proc, m.from_port) == call for m in tuple(self.left))

    def is_held_by(self, current: Serving) -> bool:
        """Return whether the actor waits if this thread, running in this context, waits."""
        raise NotImplementedError

    def is_on_loop(self) -> bool:
        """Return whether the current thread is the event loop that the actor runs on."""
        return False

    def needs_loop(self) -> bool:
        """Return whether the actor serves messages on the event loop of its process."""
        return False

    def task_of(self, call: tuple[int, int] | None, is_exclusive: bool) -> asyncio.Task[Any] | None:
        """Return the task that serves a call; if it is exclusive, the main task of the actor."""
        return None

    def serving(self, message: Message, plan: Plan) -> Serving:
        """Create the context of a message."""
        self.running_name = plan.name
        return Serving(self, message, plan.extent)

    def arguments(self, message: Message, plan: Plan) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unpickle the arguments of a message, preceded by a port if the endpoint takes one."""
        received: Message | OpenMessage = message
        if self.recording is not None:
            current = serving()
            assert current is not None, "a message is served in its context"
            current.number, received = self.recording.message(message)
        if plan.error is not None:
            raise plan.error
        args, kwargs = value_of(received)
        if plan.is_explicit:
            args = (self.answer_port(message), *args)
        return args, kwargs

    def answer_port(self, message: Message) -> Port[Any]:
        """Create the response port for an endpoint that replies explicitly."""
        return ReplyPort(message)

    def begin_owning(self) -> None:
        """Register the actor as an owner of meshes, which `__init__` may already spawn."""
        ownership = self.runtime.ownership
        ownership.owner_started(self.port, self.has_supervise())
        for entry in self.request.owned:
            entry.adopt(self.runtime, self.port)

    def created(self) -> None:
        """Reply to the spawn request, and release its content.

        Its arguments may be large, or contain the only port of a channel: the actor decides how
        long they live.
        """
        message, self.spawn_message = self.spawn_message, None
        request = self.request
        request.args, request.kwargs = (), {}
        request.moved, request.owned = None, ()
        if message is not None:
            self.answer(message, None)

    def answer(self, message: Message, value: Any) -> None:
        """Send a result."""
        if message.from_port:
            try:
                body, buffers = encode_value(value, self.threshold, "result")
                note_ports(body, [(message.from_proc, 0)])
                if self.recording is not None and (number := _served_number()):
                    self.recording.returned(number, body, buffers)
                self.engine.reply(message, 0, body, buffers)
            except Exception as error:
                self.answer_error(message, error)

    def answer_error(self, message: Message, error: BaseException) -> None:
        """Send an exception instead of a result."""
        self.engine.reply(message, RAISED, encode_exception(error))

    def settle_error(self, message: Message, plan: Plan, error: BaseException) -> None:
        """Send an exception to the waiting caller.

        Raises:
            ActorFailure: No caller waits for a reply, so the actor fails with the exception.
        """
        if type(error) is ValueError and str(error).startswith(_SIGNAL_REFUSED):
            error.add_note(_SIGNAL_HINT)
        if self.recording is not None and (number := _served_number()):
            self.recording.raised(number, error, plan.name)
        if message.from_port and not plan.is_explicit:
            self.answer_error(message, error)
            return
        self.unanswered = message
        raise self.fails_of(error)

    def fails_of(self, error: BaseException) -> ActorFailure:
        """Create the failure to raise, and store it in case a late cancellation replaces it."""
        failure = ActorFailure()
        failure.__cause__ = error
        self.abort_error = failure
        return failure

    def take_cancelled(self, message: Message) -> bool:
        """Return whether the caller of a message that has not started has cancelled the call."""
        key = (message.from_proc, message.from_port)
        if key in self.cancelled:
            self.cancelled.discard(key)
            drop_ports(message)
            return True
        return False

    def has_supervise(self) -> bool:
        """Return whether the actor class defines `__supervise__`."""
        return getattr(self.request.cls, "__supervise__", None) is not None

    def abort(self, reason: str | None) -> None:
        """Fail the actor after it has replied to the current message."""
        self.abort_error = ActorFailure(reason or "the actor called abort()")

    def stop_soon(self, reason: str | None) -> None:
        """Stop the actor after it has replied to the current message."""
        self.is_leaving = self.is_stop_wanted = True

    def check_stop_requests(self) -> None:
        """Carry out an abort that the actor has requested itself.

        Raises:
            ActorFailure: The actor has aborted.
        """
        if self.abort_error is not None:
            raise self.abort_error

    def queue_freeze(self) -> None:
        """Queue the request to freeze behind the pending messages."""
        target = Targets([(self.engine.me, 0)])
        self.engine.send(CALL, target, self.port, _FREEZE, b"", [], 1 << 31, 0, None)

    # Termination. It may be requested on any thread; the subclasses perform it where the actor
    # runs.

    @property
    def is_ended(self) -> bool:
        """Whether the actor has terminated completely."""
        return self.ending.is_over.is_set()

    def fail_of(self, error: BaseException) -> None:
        """Fail the actor immediately, because something that it owns has failed."""
        failure = ActorFailure()
        failure.__cause__ = error
        self.is_stop_wanted = True
        self.ending.begin(failure)
        self.cut_short()

    def halt(self) -> None:
        """Stop the actor immediately: drop queued messages, interrupt the running endpoint."""
        self.is_stop_wanted = True
        self.ending.begin(None)
        self.cut_short()

    # Methods that subclasses implement.

    def start(self, spawn_message: Message) -> None:
        """Create the actor and start to serve its messages; return immediately."""
        raise NotImplementedError

    def cancel(self, message: Message) -> None:
        """Cancel a running call, or record that a call that has not started must not start."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Make the actor wait, after it has served the messages that are queued now."""
        raise NotImplementedError

    def thaw(self) -> None:
        """Let the actor continue."""
        raise NotImplementedError

    def supervise_soon(self, ask: SuperviseCall) -> None:
        """Call `__supervise__` as soon as the actor can run it."""
        raise NotImplementedError

    def cut_short(self) -> None:
        """Raise `CallCancelled` in the running endpoint."""
        raise NotImplementedError

    def running_messages(self) -> list[Message]:
        """Return the messages that were taken from the mailbox and have no reply yet."""
        raise NotImplementedError

    def detail(self, error: ActorFailure | None) -> FailureDetail:
        """Describe why the mailbox is closed; each call with an error is a new failure."""
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
        return FailureDetail(failure_id, ACTOR_FAILED, fields, encoded, self.request.owner[0])
