"""Finds a schedule of recorded actors that fails, and the shortest one like it."""

from __future__ import annotations

import time
from pathlib import Path

from mesh_core._replay.errors import ReplayError
from mesh_core._replay.trusted_case import read_trusted_case
from mesh_core._schedules.diagram import mermaid, sequence_diagram
from mesh_core._schedules.inputs import Inputs
from mesh_core._schedules.orders import FixedOrder, PctOrder, RecordedOrder, SerialOrder
from mesh_core._schedules.run import Failure, Run
from mesh_core._schedules.shorten import shortened
from mesh_core._schedules.world import run_in_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from os import PathLike

    from mesh_core._cases.case import Case
    from mesh_core._schedules.events import EventId
    from mesh_core._schedules.orders import Order

__all__ = ["FailingSchedule", "ScheduleSearch"]

_SHORTEN_S = 20.0


class FailingSchedule:
    """An order of messages and replies in which the actors of a case fail.

    Attributes:
        seed: The seed that found it; None for the recorded order.
        error: The exception with which the actors fail.
        found_length: The number of messages and replies before it was shortened.
        steps: The messages and replies of the shortened schedule, each in a few words.
        is_race: Whether the order is the cause: the actors do not fail if each message from outside
            is served completely before the next one is sent.
    """

    def __init__(self, seed: int | None, found_length: int, run: Run, is_race: bool) -> None:
        assert run.failure is not None
        self.seed: int | None = seed
        self.found_length: int = found_length
        self.is_race: bool = is_race
        self._run = run
        self._failure: Failure = run.failure
        self.error: BaseException = run.failure.error
        self.steps: list[str] = [
            f"{one.sender} to {one.actor.name}: {one.text}" for one in run.events
        ]

    @property
    def actor(self) -> str:
        """The actor that fails; empty if all actors wait for each other."""
        return self._failure.actor

    @property
    def endpoint(self) -> str:
        """The endpoint that raises the exception."""
        return self._failure.endpoint

    @property
    def reason(self) -> str:
        """How the actors fail, in one line."""
        return self._failure.text

    def diagram(self) -> str:
        """Return the schedule as a sequence diagram in plain text."""
        return sequence_diagram(self._run.events, self._failure)

    def mermaid(self) -> str:
        """Return the schedule as a sequence diagram in the language of Mermaid."""
        return mermaid(self._run.events, self._failure)


class ScheduleSearch:
    """The actors of a case, which run together in this process in different orders.

    Actors with a complete record run. Other actors send the replies of the recorded run. Messages
    from the program and from other actors are the recorded messages. Each of them is sent only
    after the replies to other such messages that its sender may have waited for: the messages that
    had ended when it was started in the recorded run.

    Args:
        path: The case.
        trust: Whether the case may execute code, which its pickles and modules contain.
        may_reorder: Whether such messages may be sent in any order, even if their senders may have
            waited for replies. Finds more failures, but also some that the program prevents.

    Raises:
        CaseError: The file is not a case, or is damaged.
        ReplayError: `trust` is False, or no actor can run.
    """

    def __init__(
        self, path: str | PathLike[str], *, trust: bool = False, may_reorder: bool = False
    ) -> None:
        self.path: Path = Path(path)
        self.case: Case = read_trusted_case(self.path, trust)
        self.may_reorder: bool = may_reorder
        self._inputs = Inputs(self.case, may_reorder=may_reorder)
        self._target = _target(self._inputs, self.case)
        self._known = {key for one in self._inputs.actors for key in one.known_errors}

    @property
    def actors(self) -> list[str]:
        """The actors that run."""
        return [one.name for one in self._inputs.actors]

    @property
    def left_out(self) -> dict[str, str]:
        """The actors that do not run, with the reason."""
        return self._inputs.left_out

    @property
    def input_count(self) -> int:
        """The number of messages from outside."""
        return len(self._inputs.all)

    def run_recorded(self) -> FailingSchedule | None:
        """Run the actors in the recorded order; return the schedule if they fail.

        Raises:
            ReplayError: The record does not cover an action of the actors.
        """
        order = RecordedOrder()
        run = self._run(order)
        if run.unfinished:
            raise ReplayError(f"the actors cannot run together: {run.unfinished}")
        return self._shortest(None, order, run) if run.failure is not None else None

    def find(
        self, count: int, first_seed: int = 0, progress: Callable[[int], object] | None = None
    ) -> FailingSchedule | None:
        """Run the actors in other orders until they fail.

        Args:
            count: The number of orders.
            first_seed: The seed of the first order; the next ones follow it.
            progress: Called with each seed before it runs.

        Returns:
            The shortest schedule that fails as the found one does; None if none was found.

        Raises:
            ReplayError: The actors fail in an order, but not again in the same one.
        """
        for seed in range(first_seed, first_seed + count):
            if progress is not None:
                progress(seed)
            order = PctOrder(seed, self._inputs.event_count)
            run = self._run(order)
            if run.failure is not None:
                return self._shortest(seed, order, run)
        return None

    def check(self, count: int) -> None:
        """Run the actors in the recorded order and in others, and raise the exception if they fail.

        Actors that were corrected may perform actions that the record does not cover. Such runs
        count as passed.

        Args:
            count: The number of other orders.

        Raises:
            Exception: The actors failed, with this exception. A note shows the order.
        """
        __tracebackhide__ = True
        order = RecordedOrder()
        run = self._run(order)
        found = self.find(count) if run.failure is None else self._shortest(None, order, run)
        if found is not None:
            found.error.add_note(found.diagram())
            raise found.error

    def _run(self, order: Order, without: Collection[int] = ()) -> Run:
        return run_in_order(self.case, self._inputs, order, self._is_wanted, without)

    def _is_wanted(self, failure: Failure) -> bool:
        if self._target is None:
            return failure.key not in self._known
        if not failure.actor:
            return self._target[1] == type(failure.error).__name__
        return failure.key == self._target

    def _shortest(self, seed: int | None, order: Order, run: Run) -> FailingSchedule:
        assert run.failure is not None
        wanted = run.failure.text
        until = time.monotonic() + _SHORTEN_S

        def attempt(identities: list[EventId], without: frozenset[int]) -> Run | None:
            if time.monotonic() > until:
                return None
            fixed = FixedOrder(identities, keeps_time=order.keeps_time)
            found = self._run(fixed, without)
            is_same = found.failure is not None and found.failure.text == wanted
            return found if is_same else None

        serial = self._run(SerialOrder()).failure
        is_race = serial is None or serial.text != wanted

        def may_leave_out(without: frozenset[int]) -> bool:
            # The actors must not fail because of the missing messages.
            return not is_race or self._run(SerialOrder(), without).failure is None

        again = attempt([one.identity for one in run.events], frozenset())
        if again is None:
            raise ReplayError(
                f"{wanted}, but not again in the same order: the actors depend on something that "
                "is not recorded, such as global state of a module"
            )
        return FailingSchedule(
            seed, len(run.events), shortened(again, attempt, may_leave_out), is_race
        )


def _target(inputs: Inputs, case: Case) -> tuple[str, str] | None:
    """Return the endpoint and the type of the exception that the case was saved for."""
    if case.failed is None:
        return None
    actor = case.actors[case.failed]
    for one in inputs.actors:
        record = one.record
        if record.actor is actor and record.failing is not None:
            outcome = record.outcome(record.failing)
            endpoints = {found.fields["n"]: found.fields["endpoint"] for found in record.messages}
            assert outcome is not None
            kind = outcome.fields["error"].partition(":")[0]
            return endpoints.get(record.failing, "__init__"), kind
    return None
