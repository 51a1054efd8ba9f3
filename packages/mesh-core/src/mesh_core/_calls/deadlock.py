"""Waiting inside an actor, with detection of waits that can never end.

A call of an actor to itself is detected immediately. A longer cycle (A waits for B, B waits for A)
is detected by probing: after a while, a waiting actor queries the process of the actor that it
waits for, which reports what *that* actor waits for, and so on. If two such searches return to the
start through exactly the same calls, the wait is a cycle, and `DeadlockError` is raised with the
names of its members. Waits with a timeout are never part of a cycle.
"""

from __future__ import annotations

import threading
import time
from typing import overload

from mesh_core._calls.event_loop import load_asyncio, running_loop
from mesh_core._calls.task_dependencies import is_awaited_by
from mesh_core._configuration.config import effective
from mesh_core._errors import DeadlockError
from mesh_core._runtime.serving import serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from mesh_core._actors.cell import ActorCell
    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._calls.future import CallFuture
    from mesh_core._core import Engine, Message
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._runtime.serving import Serving

    Actor = tuple[int, int]
    Call = tuple[int, int]
    # The waiting actor and endpoint, the call that it waits for, the called endpoint, and the
    # actors that have not replied.
    Link = tuple[str, str, Call, str, list[Actor]]

__all__ = [
    "begin_wait",
    "check_wait",
    "end_wait",
    "fail_if_stuck",
    "set_up_runs",
    "waiter",
    "waiting_on",
    "waits",
]

_HOPS_MAX = 64
_BACKOFF_MAX = 32
_PROBES_MAX = 16
# How often to check whether an actor that is being spawned in this process has started.
_COMING_S = 0.05


class Wait:
    """One wait of an actor for a call.

    Attributes:
        cell: The waiting actor.
        call: The call that the actor is serving; None if its reply may come from another component.
        is_exclusive: Whether the actor serves no other message until the wait has ended.
        reply: The port on which the replies arrive.
        name: The endpoint that was called.
        task: The waiting task, on an event loop.
        future: The future that the task awaits.
        since: When the wait began or was last probed, as `time.monotonic()`.
        began: When the wait began, as `time.monotonic()`.
        factor: Number of probe periods until the next probe.
    """

    __slots__ = (
        "began", "call", "cell", "factor", "future", "is_exclusive", "name", "reply",
        "running_name", "since", "task",
    )  # fmt: skip

    def __init__(self, current: Serving, reply: int, name: str) -> None:
        cell, message = current.cell, current.message
        self.cell = cell
        self.is_exclusive = cell.is_exclusive(current)
        self.call: Call | None = None
        self.running_name: str = cell.first_name
        if message is not None:
            plan = cell.plan(message.meta)
            self.running_name = plan.name
            if not plan.is_explicit:
                self.call = (message.from_proc, message.from_port)
        self.reply = reply
        self.name = name
        self.task: asyncio.Task[Any] | None = None
        self.future: CallFuture[Any] | None = None
        self.since = self.began = time.monotonic()
        self.factor = 1

    def is_blocking(self) -> bool:
        """Return whether the endpoint cannot continue until this wait has ended."""
        if self.task is None:
            return True
        root = self.cell.task_of(self.call, self.is_exclusive)
        return root is not None and is_awaited_by(root, self.task)

    def link(self) -> Link:
        """Return the description of the wait that other processes need."""
        engine = self.cell.engine
        left = [(proc, to) for r, proc, to in engine.waits() if r == self.reply]
        return self.cell.name, self.running_name, (engine.me, self.reply), self.name, left


# The context of this process's `bootstrap`, while it runs.
_set_up: Serving | None = None
# The waits of the actors of this process. Waiting threads write it; the agent reads it.
_waits: set[Wait] = set()
_ticking: set[int] = set()


def waits() -> list[Wait]:
    """Return the current waits of the actors of this process that have no timeout."""
    return list(_waits)


def set_up_runs(set_up: Serving | None) -> None:
    """Record that `bootstrap` is running in this process, or, if None, that it has ended."""
    global _set_up
    _set_up = set_up


def waiter() -> Serving | None:
    """Return the context of the actor, or of `bootstrap`, that this code runs in."""
    return serving() or _set_up


def waiting_on(runtime: Runtime, port: int, call: Call) -> list[Link]:
    """Return the waits that must end before a port of this process can reply to a call."""
    cell = runtime.actors.get(port)
    if cell is not None:
        return _waits_of(cell, call)
    # Until `bootstrap` has ended, the process spawns no actors and replies to no requests.
    return [] if _set_up is None else _waits_of(_set_up.cell, call)


def _waits_of(cell: ActorCell, call: Call) -> list[Link]:
    is_queued = cell.has_queued(call)
    return [
        wait.link()
        for wait in tuple(_waits)
        if wait.cell is cell
        and (wait.call == call or (is_queued and wait.is_exclusive))
        and wait.is_blocking()
    ]


@overload
def check_wait(
    engine: Engine,
    reply: int,
    endpoint: Endpoint[..., Any],
    timeout: None,
    *,
    needs_all: bool = True,
) -> list[Message]: ...
@overload
def check_wait(
    engine: Engine,
    reply: int,
    endpoint: Endpoint[..., Any],
    timeout: float | None,
    *,
    needs_all: bool = True,
) -> list[Message] | None: ...
def check_wait(
    engine: Engine,
    reply: int,
    endpoint: Endpoint[..., Any],
    timeout: float | None,
    *,
    needs_all: bool = True,
) -> list[Message] | None:
    """Wait for replies from within an actor.

    Raises:
        DeadlockError: The wait can never end. The call is not cancelled; that is up to the caller.
    """
    current = waiter()
    assert current is not None
    if timeout is not None or not current.cell.is_held_by(current):
        return engine.wait(reply, timeout)
    wait = Wait(current, reply, endpoint.name)
    _check_own_call(wait, endpoint, needs_all)
    if _has_deadline(endpoint):
        return engine.wait(reply, None)
    probe_s = effective().deadlock_probe_s
    _waits.add(wait)
    try:
        while True:
            blocks_start = _blocks_start(wait, endpoint)
            answers = engine.wait(reply, _COMING_S if blocks_start else probe_s * wait.factor)
            if answers is not None:
                return answers
            if blocks_start:
                # Whether the actor needs the loop that this wait blocks is known only after it has
                # started.
                _check_own_call(wait, endpoint, needs_all)
                continue
            wait.factor = min(wait.factor * 2, _BACKOFF_MAX)
            error = _deadlock_of(wait)
            if error is not None:
                raise error
    finally:
        _waits.discard(wait)


def begin_wait(future: CallFuture[Any]) -> Wait | None:
    """Register that a task of an actor awaits a call; the future fails on a deadlock."""
    current = waiter()
    if current is None:
        return None
    endpoint = future._endpoint
    wait = Wait(current, future._reply, endpoint.name)
    wait.task, wait.future = load_asyncio().current_task(), future
    root = current.cell.task_of(wait.call, wait.is_exclusive)
    if wait.is_exclusive and wait.task is root:
        try:
            _check_own_call(wait, endpoint, needs_all=True)
        except DeadlockError as error:
            future._fail(error)
            return None
    if _has_deadline(endpoint):
        return None
    _waits.add(wait)
    loop = running_loop()
    if id(loop) not in _ticking:
        _ticking.add(id(loop))
        loop.call_later(effective().deadlock_probe_s, _tick, loop)
    return wait


def end_wait(wait: Wait) -> None:
    """Unregister a wait, because its task resumes."""
    _waits.discard(wait)


def fail_if_stuck(
    current: Serving, futures: list[CallFuture[Any]], *, is_new: bool = False
) -> None:
    """Fail the calls that an actor waits for if none of them can ever end.

    Args:
        current: The call that the actor is serving.
        futures: The calls; the actor continues as soon as one of them ends.
        is_new: Search only for calls of the actor to itself, because the wait begins now.
    """
    if not futures or not current.cell.is_held_by(current):
        return
    errors = []
    for future in futures:
        endpoint = future._endpoint
        if _has_deadline(endpoint):
            return
        wait = Wait(current, future._reply, endpoint.name)
        error = None
        try:
            _check_own_call(wait, endpoint, needs_all=True)
        except DeadlockError as found:
            error = found
        if error is None and not is_new:
            error = _deadlock_of(wait)
        if error is None:
            return
        errors.append(error)
    for future, error in zip(futures, errors, strict=True):
        future._fail(error)


def _has_deadline(endpoint: Endpoint[..., Any]) -> bool:
    return endpoint._options.timeout is not None or effective().call_timeout_s is not None


def _tick(loop: asyncio.AbstractEventLoop) -> None:
    """Probe the waits of tasks that have lasted a while; reschedule while any are left."""
    probe_s, now = effective().deadlock_probe_s, time.monotonic()
    mine = [wait for wait in tuple(_waits) if wait.task is not None and _loop_of(wait) is loop]
    if not mine:
        _ticking.discard(id(loop))
        return
    late = [wait for wait in mine if now - wait.since >= probe_s * wait.factor * 0.99]
    for wait in late[:_PROBES_MAX]:
        wait.since, wait.factor = now, min(wait.factor * 2, _BACKOFF_MAX)
        if wait.is_blocking():
            threading.Thread(target=_probe, args=(wait,), name="mesh-probe", daemon=True).start()
    loop.call_later(probe_s / 2, _tick, loop)


def _loop_of(wait: Wait) -> asyncio.AbstractEventLoop:
    assert wait.task is not None
    return wait.task.get_loop()


def _probe(wait: Wait) -> None:
    error = _deadlock_of(wait)
    if error is not None and wait in _waits and wait.future is not None:
        wait.future._fail(error)


def _check_own_call(wait: Wait, endpoint: Endpoint[..., Any], needs_all: bool) -> None:
    """Raise if an actor waits for itself and cannot serve other messages in the meantime."""
    if not _is_call(endpoint):
        return
    cell, mesh = wait.cell, endpoint._mesh
    if mesh._port != cell.port:
        if cell.is_on_loop():
            _check_own_loop(wait, endpoint)
        return
    if not wait.is_exclusive:
        return
    me = (cell.engine.me, cell.port)
    left = wait.link()[4]
    if me not in left or not (needs_all or all(target == me for target in left)):
        return
    if not cell.has_queued((cell.engine.me, wait.reply)):
        return
    running, name = wait.running_name, endpoint.name
    raise DeadlockError(
        f"actor {cell.name!r} waits in {running!r} for its own endpoint {name!r}, which starts "
        f"only after {running!r} returns: call self.{name}(...) directly, or make "
        f"{running!r} a concurrent_endpoint and await it",
        cycle=(cell.name, cell.name),
    )


def _check_own_loop(wait: Wait, endpoint: Endpoint[..., Any]) -> None:
    """Raise if a wait that blocks the event loop is for an actor that needs this loop."""
    if wait.task is not None:
        return
    cell = wait.cell
    other = cell.runtime.actors.get(endpoint._mesh._port)
    if other is None or not _is_here(wait, endpoint) or not other.needs_loop():
        return
    raise DeadlockError(
        f"actor {cell.name!r} blocks the event loop of its process in {wait.running_name!r} while "
        f"it waits for {endpoint.name!r} of {other.name!r}, which needs that loop: await the "
        "future instead of calling get()",
        cycle=(cell.name, other.name),
    )


def _blocks_start(wait: Wait, endpoint: Endpoint[..., Any]) -> bool:
    """Return whether a wait blocks the loop for a local actor that has not started yet."""
    cell = wait.cell
    if not _is_call(endpoint):
        return False
    is_known = endpoint._mesh._port in cell.runtime.actors
    return not is_known and cell.is_on_loop() and _is_here(wait, endpoint)


def _is_call(endpoint: Endpoint[..., Any]) -> bool:
    """Return whether the endpoint is a real one, not the readiness of a mesh."""
    return hasattr(endpoint, "_method")


def _is_here(wait: Wait, endpoint: Endpoint[..., Any]) -> bool:
    return any(proc == wait.cell.engine.me for proc, _ in endpoint._mesh._targets)


def _deadlock_of(wait: Wait) -> DeadlockError | None:
    """Search for a cycle twice; a cycle found both times existed throughout."""
    first = _find_cycle(wait)
    if first is None or _find_cycle(wait) != first:
        return None
    names = [f"{actor!r} waits in {running!r} for {name!r}" for actor, running, _, name, _ in first]
    return DeadlockError(
        "actors wait for each other in a cycle: "
        + "; ".join(names)
        + ": return before calling back, or use a concurrent_endpoint",
        cycle=tuple(link[0] for link in first),
    )


def _find_cycle(wait: Wait) -> list[Link] | None:
    """Follow the waits from one actor; return the path that leads back to it."""
    own = wait.link()
    paths: list[list[Link]] = [[own]]
    seen: set[Call] = {own[2]}
    while paths and len(seen) < _HOPS_MAX:
        path = paths.pop()
        call, targets = path[-1][2], path[-1][4]
        for proc, port in targets:
            if _is_waiter(wait, proc, port) and _is_held_by(wait, call):
                return path
            for link in _ask(wait, proc, port, call):
                if link[2] not in seen:
                    seen.add(link[2])
                    paths.append([*path, link])
    return None


def _is_waiter(wait: Wait, proc: int, port: int) -> bool:
    """Return whether the waiting actor, or `bootstrap`, serves a port."""
    cell = wait.cell
    if proc != cell.engine.me:
        return False
    is_set_up = _set_up is not None and cell is _set_up.cell
    return port == cell.port or (is_set_up and port not in cell.runtime.actors)


def _is_held_by(wait: Wait, call: Call) -> bool:
    """Return whether a call to the waiting actor gets no reply until the wait has ended."""
    return wait.call == call or (wait.is_exclusive and wait.cell.has_queued(call))


def _ask(wait: Wait, proc: int, port: int, call: Call) -> list[Link]:
    runtime = wait.cell.runtime
    if proc == runtime.me:
        return waiting_on(runtime, port, call)
    return runtime.ask_agent(proc, "waiting_on", port, *call, timeout=1.0) or []
