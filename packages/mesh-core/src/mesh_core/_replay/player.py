"""Runs a recorded actor again: its constructor, and its messages in the recorded order."""

from __future__ import annotations

import asyncio
import math
import tempfile
from contextvars import copy_context
from pathlib import Path
from typing import Any

from mesh_core._calls.actor import is_loop_driven
from mesh_core._calls.event_loop import waker_of
from mesh_core._program.assembly import assemble
from mesh_core._recording.random_states import restore_random_states
from mesh_core._replay.cell import ReplayCell
from mesh_core._replay.compare import differs, shown
from mesh_core._replay.engine import ReplayEngine
from mesh_core._replay.errors import NotReplayable, RecordEnded, ReplayDiverged
from mesh_core._replay.loop import VirtualLoop
from mesh_core._replay.source import current_class
from mesh_core._runtime.identity import Identity
from mesh_core._runtime.runtime import adopt, runtime_if_any, value_of
from mesh_core._runtime.serving import Serving, set_serving
from mesh_core._serialization.pickler import encode_value
from mesh_core._supervision.lifecycle import Lifecycle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._actors.cell import Plan
    from mesh_core._cases.case import Case, Entry
    from mesh_core._replay.record import Record
    from mesh_core._runtime.runtime import Runtime

__all__ = ["Player"]

_LEN_MAX = 1 << 60


class Player:
    """One run of a recorded actor.

    Args:
        case: The case.
        record: The record of the actor.
        run: Calls an endpoint: a function of the number of the message, the name of the endpoint, a
            function and its arguments. A debugger stops in it.

    Attributes:
        instance: The actor, once its constructor has returned.
        error: The exception with which the last message that failed ended.
    """

    def __init__(
        self,
        case: Case,
        record: Record,
        run: Callable[..., Any] = lambda _number, _name, function, *args, **kwargs: function(
            *args, **kwargs
        ),
    ) -> None:
        self._case = case
        self._record = record
        self._run = run
        self.instance: Any = None
        self.error: BaseException | None = None

    def play(self, until: int | None = None) -> None:
        """Create the actor and serve its messages.

        Args:
            until: The number of the last message to serve. Default: all of them.

        Raises:
            ReplayDiverged: The actor behaves differently from the recorded run.
            RecordEnded: The actor continues where the recorded run had ended.
            ReplayError: The case is not complete.
        """
        former = runtime_if_any()
        with tempfile.TemporaryDirectory(prefix="mesh-replay-") as folder:
            current = _replay_runtime(self._case.job, Path(folder))
            engine = current.engine
            try:
                self._play(current, math.inf if until is None else until)
            finally:
                adopt(former)
                engine.close()

    def _play(self, current: Runtime, until: float) -> None:
        record = self._record
        message = record.spawn_message()
        request = value_of(message)
        request.cls = current_class(request.cls, self._case)
        is_async = is_loop_driven(request.cls)
        replayed: Any = ReplayEngine(current.engine, record, is_lazy=is_async)
        current.engine = replayed
        cell = ReplayCell(current, 1 << 20, message.rank, request, record)
        current.actors[cell.port] = cell
        if is_async:
            _LoopPlay(self, cell, replayed).play(until)
        else:
            self._play_on_thread(cell, until)

    def _play_on_thread(self, cell: ReplayCell, until: float) -> None:
        copy_context().run(self._create, cell)
        for entry in self._record.messages:
            if self.error is not None or entry.fields["n"] > until:
                return
            copy_context().run(self._serve, cell, entry)

    def _create(self, cell: ReplayCell) -> None:
        """Run the constructor."""
        set_serving(Serving(cell, None, cell.point.extent))
        restore_random_states(self._record.begin_fields.get("random", {}))
        request = cell.request
        try:
            self.instance = request.cls.__new__(request.cls, *request.args, **request.kwargs)
            cell.instance = self.instance
            self._run(0, "__init__", self.instance.__init__, *request.args, **request.kwargs)
        except Exception as error:
            self.failed(0, error)

    def _serve(self, cell: ReplayCell, entry: Entry) -> None:
        number, plan, args, kwargs = self.begin(cell, entry)
        try:
            value = self._run(number, plan.name, plan.function, self.instance, *args, **kwargs)
        except Exception as error:
            self.failed(number, error)
        else:
            self.returned(number, value)

    def begin(
        self, cell: ReplayCell, entry: Entry
    ) -> tuple[int, Plan, tuple[Any, ...], dict[str, Any]]:
        """Set the context of a message, and return its number, endpoint and arguments."""
        number = entry.fields["n"]
        message: Any = self._record.message(entry)
        plan = cell.plan(message.meta)
        serving = Serving(cell, message, plan.extent)
        serving.number = number
        set_serving(serving)
        args, kwargs = cell.arguments(message, plan)
        return number, plan, args, kwargs

    def failed(self, number: int, error: Exception) -> None:
        """Handle the exception of a message: the recorded run must have raised it too."""
        outcome = self._record.outcome(number)
        text = f"{type(error).__name__}: {error}"
        if outcome is None or outcome.fields["status"] == "raised":
            recorded = "" if outcome is None else outcome.fields.get("error", "")
            if outcome is not None and _kind(recorded) != _kind(text):
                raise ReplayDiverged(number, "the exception", recorded, text) from error
            if number == self._record.last:
                self.error = error
                if outcome is not None and recorded != text:
                    error.add_note(f"the recorded message was: {recorded}")
            # Otherwise the caller got the exception, and the actor served further messages.
            return
        raise ReplayDiverged(number, "the outcome", "a result", text) from error

    def returned(self, number: int, value: object) -> None:
        """Handle the result of a message: the recorded run must have returned it too."""
        outcome = self._record.outcome(number)
        if outcome is None:
            return
        if outcome.fields["status"] == "raised":
            if number == self._record.last:
                # The cause of the failure was corrected.
                return
            raise ReplayDiverged(number, "the outcome", outcome.fields["error"], shown(value))
        if outcome.payloads and isinstance(outcome.payloads[0], bytes):
            body, buffers = encode_value(value, _LEN_MAX)
            found = differs(outcome.payloads[0], body, buffers)
            if found is not None:
                raise ReplayDiverged(number, "the result", *found)


class _LoopPlay:
    """The run of an actor with `async` endpoints, in the recorded order of messages and replies."""

    def __init__(self, player: Player, cell: ReplayCell, engine: ReplayEngine) -> None:
        self._player = player
        self._cell = cell
        self._engine = engine
        self._loop = VirtualLoop()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped: BaseException | None = None

    def play(self, until: float) -> None:
        record = self._player._record
        asyncio.set_event_loop(self._loop)
        try:
            entries = record.actor.entries
            began_ns = entries[0].time_ns
            self._start(self._create())
            for entry, after in zip(entries, [*entries[1:], None], strict=True):
                if entry.kind == "message":
                    if entry.fields["n"] > until or self._player.error is not None:
                        break
                    self._start(self._serve(entry))
                elif entry.kind == "reply":
                    self._deliver(entry)
                end_s = math.inf if after is None else (after.time_ns - began_ns) / 1e9
                self._loop.settle(end_s if math.isfinite(end_s) else self._loop.time() + 3600.0)
                if self._stopped is not None:
                    raise self._stopped
        finally:
            for task in self._tasks:
                task.cancel()
            self._loop.settle(self._loop.time())
            asyncio.set_event_loop(None)
            self._loop.close()

    def _start(self, coroutine: Any) -> None:
        self._tasks.append(self._loop.create_task(coroutine))

    def _deliver(self, entry: Entry) -> None:
        port = self._engine.deliver(entry.fields["k"], self._player._record.reply(entry))
        if port:
            waker = waker_of(self._loop, self._cell.engine)
            self._loop.call_soon(waker._run, [port])

    async def _create(self) -> None:
        player, cell = self._player, self._cell
        set_serving(Serving(cell, None, cell.point.extent))
        restore_random_states(player._record.begin_fields.get("random", {}))
        request = cell.request
        make: Any = request.cls
        try:
            player.instance = cell.instance = make.__new__(make, *request.args, **request.kwargs)
            made = player._run(
                0, "__init__", player.instance.__init__, *request.args, **request.kwargs
            )
            if asyncio.iscoroutine(made):
                await made
        except Exception as error:
            self._guarded(player.failed, 0, error)
        except (NotReplayable, ReplayDiverged, RecordEnded) as ended:
            self._stopped = ended

    async def _serve(self, entry: Entry) -> None:
        player = self._player
        try:
            number, plan, args, kwargs = player.begin(self._cell, entry)
            try:
                value = player._run(
                    number, plan.name, plan.function, player.instance, *args, **kwargs
                )
                if plan.is_async:
                    value = await value
            except Exception as error:
                player.failed(number, error)
            else:
                player.returned(number, value)
        except (NotReplayable, ReplayDiverged, RecordEnded) as ended:
            self._stopped = ended

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except (NotReplayable, ReplayDiverged, RecordEnded) as ended:
            self._stopped = ended


class _ReplayLifecycle(Lifecycle):
    """The end of a replay, which nothing but its own process ends."""

    def leave(self, status: int = 0, *, is_at_once: bool = False) -> None:
        """Ignore a request to end: the replay goes on."""


def _replay_runtime(job: bytes, folder: Path) -> Runtime:
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


def _kind(text: str) -> str:
    """Return the type in the text of an exception."""
    return text.partition(":")[0]
