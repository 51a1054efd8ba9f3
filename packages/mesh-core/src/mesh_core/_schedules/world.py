"""One run of the actors of a case, in an order that a scheduler selects.

Only one thread runs at a time, so equal orders give equal runs. Between two events, an actor runs
until it waits. Time is virtual: it passes only when no other event is possible.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from mesh_core._errors import DeadlockError
from mesh_core._recording.errors import ValueRedacted
from mesh_core._replay.errors import NotReplayable, RecordEnded, ReplayDiverged
from mesh_core._replay.play import replay_runtime
from mesh_core._replay.source import current_class, reload_script
from mesh_core._runtime.runtime import adopt, runtime_if_any
from mesh_core._schedules.actor import RunningActor, request_of
from mesh_core._schedules.baton import baton_thread
from mesh_core._schedules.context_values import ContextValues
from mesh_core._schedules.engine import ScheduleEngine
from mesh_core._schedules.events import Event
from mesh_core._schedules.run import Failure, Run
from mesh_core._serialization.wire import proc_name, read_call_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mesh_core._actors.cell import ActorCell
    from mesh_core._cases.case import Case
    from mesh_core._runtime.open_message import OpenMessage
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._schedules.inputs import Input, Inputs
    from mesh_core._schedules.orders import Order

__all__ = ["World", "run_in_order"]

_PROGRAM = "program"
_TIMERS_MAX = 1000


def run_in_order(
    case: Case,
    inputs: Inputs,
    order: Order,
    is_wanted: Callable[[Failure], bool],
    without: Collection[int] = (),
) -> Run:
    """Run the actors of a case once.

    Args:
        case: The case.
        inputs: The actors, and the messages that they receive from outside.
        order: Selects the next event.
        is_wanted: Whether a failure ends the run. After another one, callers get the exception.
        without: The indexes of inputs that are left out.
    """
    former = runtime_if_any()
    with tempfile.TemporaryDirectory(prefix="mesh-replay-") as folder:
        current = replay_runtime(case.job, Path(folder))
        engine = current.engine
        try:
            return World(current, case, inputs, is_wanted, without).run(order)
        finally:
            adopt(former)
            engine.close()


class World:
    """The state of a run; see `run_in_order`.

    Attributes:
        runtime: The runtime of all actors.
        engine: Their engine.
        inputs: The actors of the case and their messages from outside.
        now_s: The virtual time, in seconds since the first actor was created.
    """

    def __init__(
        self,
        runtime: Runtime,
        case: Case,
        inputs: Inputs,
        is_wanted: Callable[[Failure], bool],
        without: Collection[int],
    ) -> None:
        self.runtime: Runtime = runtime
        self.inputs: Inputs = inputs
        self.engine: ScheduleEngine = ScheduleEngine(runtime.engine, self)
        runtime.engine = self.engine  # type: ignore[assignment]
        self.now_s: float = 0.0
        self._real_sleep = time.sleep
        self._thread = threading.current_thread()
        # The timers that have fired since the last event.
        self._timer_count = 0
        self._is_wanted = is_wanted
        self._result = Run()
        # Events that have not happened: for each receiver and sender in order.
        self._channels: dict[tuple[str, str, bool], deque[Event]] = defaultdict(deque)
        self._counts: dict[tuple[str, str, bool], int] = defaultdict(int)
        self._times = {link: deque(found) for link, found in inputs.internal.items()}
        self._numbers: dict[int, int] = {}
        self._chains: dict[tuple[str, str, bool], int] = {}
        self._chain_count = 0
        # The last event of each chain.
        self._tails: dict[int, Event] = {}
        self._cause: Event | None = None
        # Replies to senders outside that have arrived, and their number before the first gap.
        self._replied: set[int] = set()
        self._replied_count = 0
        self._open_inputs: dict[int, Input] = {}
        reload_script()
        self._actors: list[RunningActor] = []
        for described in inputs.actors:
            request = request_of(described)
            request.cls = current_class(request.cls, case)
            actor = RunningActor(self, described, request)
            actor.cell.reader = ContextValues(self, actor)
            runtime.actors[actor.port] = actor.cell
            self._actors.append(actor)
        self._by_address = {(one.proc, one.port): one for one in self._actors}
        self._by_cell = {one.cell: one for one in self._actors}
        by_name = {one.name: one for one in self._actors}
        for one in inputs.all:
            if one.index in without:
                self._note_reply(one)
                continue
            sender = _PROGRAM if one.sender == 0 else f"process {proc_name(one.sender)}"
            event = self._add(
                by_name[one.actor.name], sender, one.message, time_ns=one.time_ns, input=one
            )
            event.identity = (one.actor.name, sender, one.index)
            event.text = read_call_meta(one.message.meta)[0]

    def run(self, order: Order) -> Run:
        """Run until no further event is possible, or the wanted failure occurs."""
        patched: Any = time
        patched.sleep = self._sleep
        try:
            for actor in self._actors:
                actor.create()
            while self._result.failure is None and not self._result.unfinished:
                events = self._possible()
                if not events or (order.is_serial and self._is_only_waiting(events)):
                    if self._pass_time():
                        continue
                    if not events:
                        break
                event = order.next(events)
                if not (order.keeps_time and self._is_early(event)):
                    self._deliver(event)
            self._check_stuck()
        finally:
            patched.sleep = self._real_sleep
            for actor in self._actors:
                actor.close()
        return self._result

    def actor_at(self, proc: int, port: int) -> RunningActor | None:
        """Return the actor with an address, if it runs."""
        return self._by_address.get((proc, port))

    def actor_of(self, cell: ActorCell) -> RunningActor:
        """Return the actor with a cell."""
        return self._by_cell[cell]  # type: ignore[index]

    def sent(self, caller: RunningActor, receiver: RunningActor, message: OpenMessage) -> None:
        """Handle a message between two actors of the run."""
        name = read_call_meta(message.meta)[0]
        link = (caller.proc, receiver.cell.name, name, message.rank)
        times = self._times.get(link)
        time_ns, number = times.popleft() if times else (None, 0)
        event = self._add(receiver, caller.name, message, time_ns=time_ns)
        event.text = name
        self._numbers[id(event)] = number

    def replied(
        self, caller: RunningActor, replier: str, content: OpenMessage, time_ns: int | None
    ) -> None:
        """Handle a reply to an actor of the run."""
        self._add(caller, replier, content, is_reply=True, time_ns=time_ns)

    def number_of(self, event: Event) -> int:
        """Return the number that a message had in the recorded run; 0 if it did not occur."""
        if event.input is not None:
            return event.input.number
        return self._numbers.get(id(event), 0)

    def ended(self, message: OpenMessage) -> None:
        """Record that a message has ended, so that its sender may continue."""
        one = self._open_inputs.pop(id(message), None)
        if one is not None:
            self._note_reply(one)

    def failed(
        self, actor: RunningActor, endpoint: str, message: OpenMessage | None, error: BaseException
    ) -> None:
        """Handle an exception of an actor."""
        if isinstance(error, (NotReplayable, RecordEnded, ReplayDiverged, ValueRedacted)):
            self._result.unfinished = self._result.unfinished or str(error)
            return
        failure = Failure(actor.name, endpoint, error)
        if self._is_wanted(failure):
            self._result.failure = self._result.failure or failure
        elif message is not None:
            self.engine.answer_error(message, error)
        else:
            what = f"the constructor of {actor.name} raised {type(error).__name__}: {error}"
            self._result.unfinished = self._result.unfinished or what
        if message is not None:
            self.ended(message)

    def left_record(self, why: str) -> RecordEnded:
        """Create the exception for an action that the record does not cover."""
        return RecordEnded(why)

    def block(self, actor: RunningActor, port: int, timeout: float | None) -> None:
        """Let others run until a reply has arrived or a timeout has expired."""
        actor.blocked_on = port
        actor.timeout_at_s = None if timeout is None else self.now_s + timeout
        actor.wait()

    def _sleep(self, seconds: float) -> None:
        """Let others run instead of sleeping; threads that actors have started do sleep."""
        thread = baton_thread()
        if thread is not None:
            actor = next(one for one in self._actors if one.runs_on(thread))
            actor.wakes_at_s = self.now_s + seconds
            actor.wait()
        elif threading.current_thread() is not self._thread:
            self._real_sleep(seconds)

    def _add(
        self,
        actor: RunningActor,
        sender: str,
        content: OpenMessage,
        *,
        is_reply: bool = False,
        time_ns: int | None = None,
        input: Input | None = None,
    ) -> Event:
        key = (actor.name, sender, is_reply)
        kind = "reply from " if is_reply else ""
        identity = (actor.name, f"{kind}{sender}", self._counts[key])
        self._counts[key] += 1
        event = Event(
            identity, actor, sender, content, is_reply=is_reply, time_ns=time_ns, input=input
        )
        self._put_in_chain(event, key)
        self._channels[key].append(event)
        return event

    def _put_in_chain(self, event: Event, key: tuple[str, str, bool]) -> None:
        """Append an event to the chain of its cause, or begin another chain."""
        cause = self._cause
        if cause is None:
            # Messages from outside arrive in order for each pair of a sender and an actor.
            if key not in self._chains:
                self._chains[key] = self._new_chain()
            event.chain = self._chains[key]
        elif self._tails[cause.chain] is cause:
            event.chain = cause.chain
        else:
            event.chain = self._new_chain()
        self._tails[event.chain] = event

    def _new_chain(self) -> int:
        self._chain_count += 1
        return self._chain_count

    def _possible(self) -> list[Event]:
        """Return the events that can happen next, in a fixed order."""
        found = []
        for (_, _, is_reply), events in self._channels.items():
            if not events:
                continue
            event = events[0]
            actor = event.actor
            if is_reply or (actor.is_created and not actor.is_busy and self._may_be_sent(event)):
                found.append(event)
        return found

    def _may_be_sent(self, event: Event) -> bool:
        return event.input is None or self._replied_count >= event.input.earlier

    def _note_reply(self, one: Input) -> None:
        """Note that a sender outside has got a reply; earlier ones may still be missing."""
        if one.ended is not None:
            self._replied.add(one.ended)
            while self._replied_count in self._replied:
                self._replied.discard(self._replied_count)
                self._replied_count += 1

    def _deliver(self, event: Event) -> None:
        self._timer_count = 0
        self._channels[event.actor.name, event.sender, event.is_reply].popleft()
        self._result.events.append(event)
        self._cause = event
        if event.is_reply:
            content = event.content
            assert content is not None
            event.text = self.engine.deliver(content)
            event.actor.take_reply(content.to_port)
        else:
            if event.input is not None:
                self._open_inputs[id(event.content)] = event.input
            event.actor.serve(event)

    def _is_early(self, event: Event) -> bool:
        """Fire the next timer if it is due before an event in the recorded run."""
        if event.time_ns is None:
            return False
        at_s = (event.time_ns - self.inputs.actors[0].created_ns) / 1e9
        timers = [one.next_timer_s for one in self._actors]
        if any(timer is not None and timer <= at_s for timer in timers):
            return self._pass_time()
        self.now_s = max(self.now_s, at_s)
        return False

    def _is_only_waiting(self, events: Sequence[Event]) -> bool:
        """Return whether actors wait for time to pass, before the next message from outside."""
        is_from_outside = all(event.input is not None for event in events)
        return is_from_outside and any(one.is_waiting for one in self._actors)

    def _pass_time(self) -> bool:
        """Advance the time to the next timer; return False without one."""
        self._timer_count += 1
        if self._timer_count > _TIMERS_MAX:
            # A timer that begins again whenever it fires does not make anything else happen.
            return False
        due = [(at, one) for one in self._actors if (at := one.next_timer_s) is not None]
        if not due:
            return False
        self.now_s = max(self.now_s, min(at for at, _ in due))
        self._cause = None
        for at, actor in due:
            if at <= self.now_s:
                actor.fire_timers()
                return True
        return False

    def _check_stuck(self) -> None:
        """Report that actors wait and no further event is possible."""
        result = self._result
        if (
            result.failure is not None
            or result.unfinished
            or not any(one.is_waiting for one in self._actors)
        ):
            return
        waits = [
            f"{event.sender} waits for {event.text} of {event.actor.name}"
            for events in self._channels.values()
            for event in events
            if event.input is None
        ]
        if not waits:
            # They wait for something that is not recorded.
            return
        failure = Failure("", "", DeadlockError(", ".join(waits)))
        if self._is_wanted(failure):
            result.failure = failure
