"""Endpoints of a mesh, and how they are called.

Looking up the name of an endpoint on a mesh returns an `Endpoint`
with the verbs `call`, `call_one`, `choose`, `broadcast` and `stream`. Everything that is the same
for all calls of an endpoint (receivers, name, limits) is computed once and cached with the mesh.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sized
from typing import Any, Generic, ParamSpec, TypeVar

from mesh_core._calls.endpoint_decorators import EndpointProperty
from mesh_core._calls.event_loop import is_on_event_loop
from mesh_core._calls.future import CallFuture, Future, GatherFuture, checked_timeout
from mesh_core._calls.late_call import call_when_done, has_future
from mesh_core._calls.map_results import MapOptions, MapResults
from mesh_core._calls.port_transit import note_ports, recall_ports
from mesh_core._calls.recorded_calls import record_call
from mesh_core._calls.reduction import reduce_call
from mesh_core._calls.signature import Arity
from mesh_core._calls.stream import stream_replies
from mesh_core._configuration.config import effective
from mesh_core._core import Full
from mesh_core._errors import MailboxFull, MeshStopped, Unpicklable
from mesh_core._observability.events import recorder
from mesh_core._observability.trace_context import origin
from mesh_core._serialization.pickler import encode
from mesh_core._serialization.wire import BY_LAYER, CALL, EXPLICIT_PORT, UNDECORATED, call_meta
from mesh_core._tensor_engine import RequiresTensorEngine, TensorEngineCall, tensor_engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from mesh_core._calls.channel import Port
    from mesh_core._calls.stream import ReplyStream
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._shapes.value_mesh import ValueMesh

__all__ = ["CallOptions", "Endpoint", "as_endpoint", "call_by_layer", "endpoint_of", "send"]

P = ParamSpec("P")
R = TypeVar("R")


class CallOptions:
    """Options of a call; see `Endpoint.options`."""

    __slots__ = ("return_exceptions", "timeout")

    def __init__(self, timeout: float | None = None, return_exceptions: bool = False) -> None:
        self.timeout: float | None = timeout
        self.return_exceptions: bool = return_exceptions


_DEFAULT_OPTIONS = CallOptions()
# How Ray, concurrent.futures and Celery call a function.
_VERBS_OF_OTHERS = frozenset({"remote", "submit", "apply_async", "delay"})


class Endpoint(Generic[P, R]):
    """One endpoint of a mesh or slice, with the verbs that call it.

    The message is sent when a verb is called. An argument of `call`, `call_one` and `choose` may be
    a future: the message is then sent when its value is known.

    If the mailbox of a receiver has no capacity for more messages of this process, the call blocks
    until it has. On an event loop, which must not block, the call returns its future immediately,
    and the message is sent when the mailbox has capacity; calls to one receiver keep their order.
    The call raises `MailboxFull` instead if too many calls already wait for capacity, or if the
    verb is `broadcast`, which returns no future.
    """

    __slots__ = (
        "_arity", "_is_idempotent", "_mesh", "_meta", "_method", "_name", "_options", "_propagate",
    )  # fmt: skip

    def __init__(
        self,
        mesh: ActorMesh[Any],
        name: str,
        method: Any,
        flags: int,
        options: CallOptions,
        arity: Arity,
        propagate: Any = None,
        is_idempotent: bool = False,
    ) -> None:
        self._propagate = propagate
        self._is_idempotent = is_idempotent
        self._mesh = mesh
        self._name = name
        self._method = method
        self._options = options
        self._arity = arity
        self._meta = call_meta(name, flags, mesh._region)

    @property
    def name(self) -> str:
        """The name of the method."""
        return self._name

    def options(
        self, *, timeout: float | None = None, return_exceptions: bool = False
    ) -> Endpoint[P, R]:
        """Return the same endpoint with other call options.

        Args:
            timeout: Deadline in seconds. When it passes, the call raises `DeadlineExceeded` and is
                cancelled at the actor. By default the deadline is `call_timeout_s` of the
                configuration.
            return_exceptions: If true, `call` returns exceptions as values in the result mesh
                instead of raising them.

        Raises:
            ValueError: The timeout is negative or not finite.
        """
        if timeout is not None:
            checked_timeout(timeout)
        other: Endpoint[P, R] = object.__new__(Endpoint)
        for slot in Endpoint.__slots__:
            setattr(other, slot, getattr(self, slot))
        other._options = CallOptions(timeout, return_exceptions)
        return other

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every actor and return a future of the results, by rank.

        Raises:
            TypeError: The arguments do not match the signature, or cannot be pickled.
            MailboxFull: On an event loop, if too many calls already wait for mailbox capacity.
        """
        try:
            reply = self._call(self._mesh._targets, args, kwargs)
        except RequiresTensorEngine:
            return call_by_layer(self, "call", args, kwargs)  # type: ignore[no-any-return]
        except Unpicklable:
            if not has_future(args, kwargs):
                raise
            return call_when_done(self.call, args, kwargs)
        return GatherFuture(reply, self, self._options.return_exceptions)

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the only actor of the mesh.

        Raises:
            ValueError: The mesh does not have exactly one actor.
            TypeError: The arguments do not match the signature, or cannot be pickled.
            MailboxFull: On an event loop, if too many calls already wait for mailbox capacity.
        """
        targets = self._mesh._targets
        if len(targets) != 1:
            raise ValueError(_not_one(self))
        try:
            reply = self._call(targets, args, kwargs)
        except RequiresTensorEngine:
            return call_by_layer(self, "call_one", args, kwargs)  # type: ignore[no-any-return]
        except Unpicklable:
            if not has_future(args, kwargs):
                raise
            return call_when_done(self.call_one, args, kwargs)
        return CallFuture(reply, self)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call one actor, picked at random.

        Raises:
            TypeError: The arguments do not match the signature, or cannot be pickled.
            MailboxFull: On an event loop, if too many calls already wait for mailbox capacity.
        """
        try:
            return self._call_rank(_random_index(len(self._mesh._targets)), args, kwargs)
        except Unpicklable:
            if not has_future(args, kwargs):
                raise
            return call_when_done(self.choose, args, kwargs)

    def route(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the replica of a service with the least load; on a mesh, the same as `choose`."""
        return self.choose(*args, **kwargs)

    def fanout(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every replica of a service; on a mesh, the same as `call`."""
        return self.call(*args, **kwargs)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> ReplyStream[R]:
        """Call every actor and return futures in the order in which the replies arrive.

        The result can be iterated with `for` and `async for`; `with_ranks()` also yields the rank
        of each reply. On an event loop, `for` never waits: it yields futures before their replies
        have arrived, to be awaited in order.

        Raises:
            TypeError: The arguments do not match the signature, or cannot be pickled.
            MailboxFull: On an event loop, if too many calls already wait for mailbox capacity.
        """
        try:
            reply = self._call(self._mesh._targets, args, kwargs)
        except RequiresTensorEngine:
            return call_by_layer(self, "stream", args, kwargs)  # type: ignore[no-any-return]
        return stream_replies(reply, self)

    def reduce(
        self, combine: Callable[[R, R], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Call every actor and return a future of the combined result.

        The results of the actors of a host are combined in a process of that host, so that each
        host sends one value; with many hosts, the values are combined along a tree. The results are
        always combined in the order of the ranks, so that sums of floats are reproducible.

        Args:
            combine: Function of two results that returns one of the same kind. It must be
                associative: `combine(a, combine(b, c))` equals `combine(combine(a, b), c)`.
            *args: The positional arguments of the endpoint.
            **kwargs: The keyword arguments of the endpoint.

        Raises:
            TypeError: The arguments do not match the signature, or cannot be pickled.
            MailboxFull: On an event loop, if too many calls already wait for mailbox capacity.
        """
        return reduce_call(self, combine, args, kwargs)

    def map(
        self,
        items: Iterable[Any],
        *more: Iterable[Any],
        ordered: bool = False,
        max_in_flight: int = 2,
        retries: int = 1,
        progress: bool = False,
    ) -> MapResults[R]:
        """Call the endpoint once per item, each time on an idle actor, and yield the results.

        The result can be iterated with `for` and `async for`. Items are taken and sent while the
        results are consumed, so any number of items needs little memory. An exception ends the
        iteration, unless `options(return_exceptions=True)` yields it as a value.

        Args:
            items: The argument of each call.
            more: Further arguments of each call; the shortest iterable determines the number of
                calls, as in the built-in `map`.
            ordered: Yield the results in the order of the items instead of their completion.
            max_in_flight: Maximum number of calls per actor that have no result yet. With 2, the
                next item is already queued when an actor completes one.
            retries: How often a call is repeated on another actor if its process dies. Only
                endpoints that are declared with `endpoint(idempotent=True)` are repeated.
            progress: Show a progress bar with tqdm or rich.

        Raises:
            ValueError: `max_in_flight` is not positive, or `retries` is negative.
            TypeError: The arguments do not match the signature, or cannot be pickled.
            ModuleNotFoundError: `progress` is set, and neither tqdm nor rich is installed.
        """
        if max_in_flight < 1 or retries < 0:
            raise ValueError(
                f"max_in_flight={max_in_flight} must be positive, and retries={retries} must not be"
                " negative"
            )
        counts = [len(one) for one in (items, *more) if isinstance(one, Sized)]
        options = MapOptions(ordered, max_in_flight, retries, progress)
        rows = zip(items, *more, strict=False)
        return MapResults(self, rows, min(counts, default=None), options)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send to every actor without waiting for replies; failures go to the owner of the actors.

        Raises:
            TypeError: The arguments do not match the signature, or cannot be pickled.
            MailboxFull: On an event loop, if the mailbox of an actor has no capacity for the
                message.
            MeshStopped: This program has stopped the mesh.
        """
        try:
            self._send(self._mesh._targets, args, kwargs, 0)
        except RequiresTensorEngine:
            call_by_layer(self, "broadcast", args, kwargs)

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call every actor and return the distributed tensor of their results.

        Raises:
            RuntimeError: No installed package provides distributed tensors.
        """
        return call_by_layer(self, "rref", args, kwargs)  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"endpoint {self._name!r} cannot be called directly: use {self._name}.call(...) for "
            f"all actors, {self._name}.call_one(...) for a single one, or .choose, .broadcast or "
            ".stream"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _VERBS_OF_OTHERS:
                raise AttributeError(
                    f"endpoint {self._name!r} has no {name!r}: use {self._name}.call(...), which "
                    "calls all actors and returns a future, or .call_one(...) for a single one"
                )
            raise AttributeError(f"'Endpoint' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Endpoint {self._name!r} of {self._mesh!r}>"

    def __reduce__(self) -> Any:
        return getattr, (self._mesh, self._name)

    def _call_rank(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[R]:
        """Call one actor."""
        try:
            reply = self._call(self._mesh._target(index), args, kwargs)
        except RequiresTensorEngine:
            return call_by_layer(self, "choose", args, kwargs, index)  # type: ignore[no-any-return]
        return CallFuture(reply, self)

    def _call(self, targets: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        if kwargs or not self._arity.fits(len(args)):
            self._arity.bind(self._method, args, kwargs)
        mesh, config = self._mesh, effective()
        current = mesh._runtime
        if mesh._port in current.stopped_meshes or current.is_over:
            raise self._stopped_error()
        body, buffers = encode(args, kwargs, config.segment_threshold_bytes, self._arity.names)
        timeout = self._options.timeout
        if timeout is None:
            timeout = config.call_timeout_s
        note_ports(body, targets)
        try:
            reply = current.engine.call(
                CALL,
                targets,
                mesh._port,
                self._meta,
                body,
                buffers,
                mesh._window,
                timeout,
                is_on_event_loop,
                origin() if recorder.is_on else None,
            )
        except BaseException as error:
            recall_ports(body, targets)
            if isinstance(error, Full):
                raise self._full() from None
            raise
        if current.recording is not None:
            record_call(
                current.recording, reply, mesh._name, self._name, targets, body, buffers,
                self._arity.names,
            )  # fmt: skip
        return reply

    def _send(
        self, targets: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answers: int
    ) -> None:
        if kwargs or not self._arity.fits(len(args)):
            self._arity.bind(self._method, args, kwargs)
        mesh = self._mesh
        current = mesh._runtime
        if mesh._port in current.stopped_meshes or current.is_over:
            raise self._stopped_error()
        body, buffers = encode(args, kwargs, effective().segment_threshold_bytes, self._arity.names)
        note_ports(body, targets)
        try:
            current.engine.send(
                CALL,
                targets,
                mesh._port,
                self._meta,
                body,
                buffers,
                mesh._window,
                answers,
                is_on_event_loop,
                origin() if recorder.is_on else None,
            )
        except BaseException as error:
            recall_ports(body, targets)
            if isinstance(error, Full):
                raise self._full() from None
            raise
        if current.recording is not None:
            record_call(
                current.recording, 0, mesh._name, self._name, targets, body, buffers,
                self._arity.names,
            )  # fmt: skip

    def _full(self) -> MailboxFull:
        return MailboxFull(self._mesh._window, self._mesh._name)

    def _stopped_error(self) -> MeshStopped:
        why = self._mesh._runtime.stop_reasons.get(self._mesh._port)
        return MeshStopped(why, mesh_name=self._mesh._name, endpoint=self._name)


def _not_one(endpoint: Endpoint[..., Any]) -> str:
    """Return the message for `call_one` of a mesh that does not have one actor."""
    mesh, name = endpoint._mesh, endpoint._name
    selected = ", ".join(f"{label}=0" for label in mesh._region.labels)
    return (
        f"call_one calls a single actor, but mesh {mesh._name!r} has {len(mesh)} {mesh.extent}: "
        f"select one, as in mesh.slice({selected}).{name}.call_one(...), or use {name}.call(...) "
        f"for all or {name}.choose(...) for any"
    )


def call_by_layer(
    endpoint: Endpoint[..., Any],
    verb: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    index: int | None = None,
) -> Any:
    """Delegate a call to the tensor layer; if an index is given, call only that actor.

    Raises:
        RuntimeError: No installed package provides distributed tensors.
        TypeError: The arguments do not match the signature, or the layer cannot send them.
    """
    if kwargs or not endpoint._arity.fits(len(args)):
        endpoint._arity.bind(endpoint._method, args, kwargs)
    mesh, meta = endpoint._mesh, endpoint._meta
    if index is not None:
        mesh = mesh._with_region(mesh._region.member(index))
        meta = call_meta(endpoint._name, meta[0], mesh._region)
    sender = endpoint.options()
    sender._options, sender._mesh = endpoint._options, mesh
    sender._meta = bytes([meta[0] | BY_LAYER]) + meta[1:]
    # The layer sends its own arguments, which the signature of the method does not describe.
    sender._arity = Arity(0, sys.maxsize, 0)
    send = getattr(sender, {"rref": "call", "choose": "call_one"}.get(verb, verb))
    timeout = endpoint._options.timeout
    call = TensorEngineCall(
        endpoint._name,
        verb,
        mesh._procs,
        mesh._region,
        mesh._port,
        endpoint._propagate,
        (effective().call_timeout_s if timeout is None else timeout) is not None,
        send,
    )
    return tensor_engine().call(call, args, kwargs)


def _random_index(count: int) -> int:
    """Pick one of `count` indexes; independent of the random numbers of the program."""
    return int.from_bytes(os.urandom(8), "little") % count


def as_endpoint(
    method: Any, *, propagate: Any = None, explicit_response_port: bool = False
) -> Endpoint[..., Any]:
    """Make a method callable on a spawned mesh although its class does not mark it as an endpoint.

    Args:
        method: `mesh.method`, looked up on a mesh.
        propagate: See `endpoint`.
        explicit_response_port: See `endpoint`.

    Raises:
        ValueError: The argument is not an undecorated method of a mesh.
    """
    if not isinstance(method, UndecoratedMethod):
        raise ValueError(
            f"{method!r} is not an undecorated method of a mesh: pass mesh.method to as_endpoint"
        )
    flags = UNDECORATED | (EXPLICIT_PORT if explicit_response_port else 0)
    found, skip = method.method, 1
    if isinstance(found, staticmethod):
        skip = 0
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    arity = Arity.of(found, skip + (1 if explicit_response_port else 0))
    return Endpoint(method.mesh, method.name, found, flags, _DEFAULT_OPTIONS, arity, propagate)


class UndecoratedMethod:
    """A method of an actor class that is not an endpoint, looked up on a mesh."""

    __slots__ = ("mesh", "method", "name")

    def __init__(self, mesh: ActorMesh[Any], name: str, method: Any) -> None:
        self.mesh = mesh
        self.name = name
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"method {self.name!r} of {self.mesh._class_name} is not an endpoint: mark it with "
            f"@endpoint, or call it as as_endpoint(mesh.{self.name}).call(...)"
        )

    def __getattr__(self, name: str) -> Any:
        self()


def endpoint_of(mesh: ActorMesh[Any], name: str, found: Any) -> Any:
    """Return the value of an attribute of the actor class when it is looked up on a mesh."""
    if isinstance(found, EndpointProperty):
        flags = EXPLICIT_PORT if found.explicit_response_port else 0
        options = _DEFAULT_OPTIONS
        return Endpoint(
            mesh,
            name,
            found.method,
            flags,
            options,
            found.arity,
            found.propagate,
            found.idempotent,
        )
    if not callable(found) and not isinstance(found, (staticmethod, classmethod)):
        raise AttributeError(
            f"{name!r} of {mesh._class_name} is not a method: a mesh has the endpoints of its "
            "class; return the value from an endpoint"
        )
    return UndecoratedMethod(mesh, name, found)


def send(
    endpoint: Endpoint[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[R] | None = None,
    selection: Literal["all", "choose"] = "all",
) -> None:
    """Send a message whose replies, one per actor, go to a port.

    Args:
        endpoint: The endpoint to call.
        args: The positional arguments.
        kwargs: The keyword arguments.
        port: The port that receives the replies; None discards them.
        selection: `"all"` actors, or `"choose"` for one picked at random.

    Raises:
        ValueError: `selection` is neither `"all"` nor `"choose"`.
        TypeError: The arguments do not match the signature, or cannot be pickled, or `endpoint` is
            a remote function, which has the method `stream`.
    """
    if not isinstance(endpoint, Endpoint):
        raise TypeError(
            f"send calls an endpoint of actors, not {endpoint!r}: for a remote function, use its "
            "method stream(...)"
        )
    if selection not in ("all", "choose"):
        raise ValueError(f"selection {selection!r} is neither 'all' nor 'choose'")
    mesh = endpoint._mesh
    targets = mesh._targets
    if selection == "choose":
        targets = mesh._target(_random_index(len(targets)))
    answers = 0 if port is None else port._require_local()
    endpoint._send(targets, args, kwargs, answers)
