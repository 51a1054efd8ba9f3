"""Runs a recorded actor again: its constructor, and its messages in the recorded order."""

from __future__ import annotations

import math
import tempfile
from contextvars import copy_context
from pathlib import Path
from typing import Any

from mesh_core._calls.actor import is_loop_driven
from mesh_core._program.assembly import assemble
from mesh_core._recording.random_states import restore_random_states
from mesh_core._replay.cell import ReplayCell
from mesh_core._replay.engine import ReplayEngine
from mesh_core._replay.loop_player import LoopPlayer
from mesh_core._replay.outcomes import Outcomes
from mesh_core._replay.source import current_class
from mesh_core._runtime.identity import Identity
from mesh_core._runtime.runtime import adopt, runtime_if_any, value_of
from mesh_core._runtime.serving import Serving, set_serving
from mesh_core._supervision.lifecycle import Lifecycle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._cases.case import Case, Entry
    from mesh_core._replay.record import Record
    from mesh_core._runtime.runtime import Runtime

__all__ = ["call_directly", "play", "replay_runtime"]

# Any number: no message of the replay reaches the port of another actor.
_PORT = 1 << 20


def call_directly(
    _number: int, _name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call an endpoint without a debugger."""
    __tracebackhide__ = True
    return function(*args, **kwargs)


def play(
    case: Case,
    record: Record,
    until: int | None = None,
    call: Callable[..., Any] = call_directly,
) -> BaseException | None:
    """Create a recorded actor and let it serve its messages.

    Args:
        case: The case.
        record: The record of the actor.
        until: The number of the last message to serve. Default: all of them.
        call: Calls an endpoint: a function of the number of the message, the name of the endpoint,
            a function and its arguments. A debugger stops in it.

    Returns:
        The exception with which the actor failed, as in the recorded run; None if it did not fail.

    Raises:
        ReplayDiverged: The actor behaves differently from the recorded run.
        RecordEnded: The actor continues where the recorded run had ended.
        NotReplayable: The actor does something that is not recorded.
        ReplayError: The case is not complete.
    """
    former = runtime_if_any()
    with tempfile.TemporaryDirectory(prefix="mesh-replay-") as folder:
        current = replay_runtime(case.job, Path(folder))
        engine = current.engine
        try:
            return _play(current, case, record, math.inf if until is None else until, call)
        finally:
            adopt(former)
            engine.close()


def _play(
    current: Runtime, case: Case, record: Record, until: float, call: Callable[..., Any]
) -> BaseException | None:
    message = record.spawn_message()
    request = value_of(message)
    request.cls = current_class(request.cls, case)
    is_async = is_loop_driven(request.cls)
    engine = ReplayEngine(current.engine, record, is_lazy=is_async)
    current.engine = engine  # type: ignore[assignment]
    cell = ReplayCell(current, _PORT, message.rank, request, record)
    current.actors[cell.port] = cell
    outcomes = Outcomes(record)
    if is_async:
        LoopPlayer(cell, engine, outcomes, call).play(until)
    else:
        _play_on_thread(cell, outcomes, until, call)
    return outcomes.error


def _play_on_thread(
    cell: ReplayCell, outcomes: Outcomes, until: float, call: Callable[..., Any]
) -> None:
    """Play an actor whose endpoints are plain functions, one message after another."""
    copy_context().run(_create, cell, outcomes, call)
    for entry in cell.record.messages:
        if outcomes.error is not None or entry.fields["n"] > until:
            return
        copy_context().run(_serve, cell, outcomes, call, entry)


def _create(cell: ReplayCell, outcomes: Outcomes, call: Callable[..., Any]) -> None:
    set_serving(Serving(cell, None, cell.point.extent))
    restore_random_states(cell.record.begin_fields.get("random", {}))
    request = cell.request
    try:
        cell.instance = request.cls.__new__(request.cls, *request.args, **request.kwargs)
        call(0, "__init__", cell.instance.__init__, *request.args, **request.kwargs)
    except Exception as error:
        outcomes.failed(0, error)


def _serve(cell: ReplayCell, outcomes: Outcomes, call: Callable[..., Any], entry: Entry) -> None:
    number, plan, args, kwargs = cell.begin(entry)
    try:
        value = call(number, plan.name, plan.function, cell.instance, *args, **kwargs)
    except Exception as error:
        outcomes.failed(number, error)
    else:
        outcomes.returned(number, value)


class _ReplayLifecycle(Lifecycle):
    """The end of a replay, which only its own process can end."""

    def leave(self, status: int = 0, *, is_at_once: bool = False) -> None:
        """Ignore a request to end: the replay continues."""


def replay_runtime(job: bytes, folder: Path) -> Runtime:
    """Create the runtime of a process that belongs to the recorded job but reaches no other one."""
    identity = Identity(
        host=0,
        host_name="replay",
        slot=0,
        incarnation=0,
        job=job,
        token=bytes(32),
        directory=folder,
    )
    return assemble(identity, _ReplayLifecycle())
