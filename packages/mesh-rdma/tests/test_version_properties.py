"""Random writers and readers of versioned buffers, also dying ones; no reader sees torn data."""

from __future__ import annotations

import contextlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import version_processes
from fork_server import ChildProcess, ForkServer
from version_scenarios import scenario_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from version_plans import Scenario, Tally, WriterPlan

# The number of scenarios of each run, and of a long run.
SEEDS = 30
SEEDS_SLOW = 400


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer(version_processes.__file__) as fork_server:
        yield fork_server


@pytest.fixture(scope="module")
def totals() -> Iterator[Counter[str]]:
    totals: Counter[str] = Counter()
    yield totals
    print("\nof versioned buffers:", dict(totals))


class ScenarioRun:
    """One scenario, executed in children of a fork server."""

    def __init__(self, fork_server: ForkServer, scenario: Scenario, totals: Counter[str]) -> None:
        self._fork_server = fork_server
        self._scenario = scenario
        self._totals = totals
        self._channels = contextlib.ExitStack()

    def run(self) -> None:
        """Run the scenario to its end; fail if a reader saw a version that was never published."""
        with self._channels:
            readers = [self._start("read", plans, False) for plans in self._scenario.readers]
            *killable, last = self._scenario.writers
            for number, plan in enumerate(killable):
                self._live(number, plan, readers, is_mortal=True)
            victims = [self._start("read", plans, True) for plans in self._scenario.victims]
            self._live(len(killable), last, readers, victims)

    def _start(self, role: str, *arguments: Any) -> ChildProcess:
        child = self._fork_server.start(role, *arguments)
        self._channels.enter_context(child.channel)
        return child

    def _live(
        self,
        number: int,
        plan: WriterPlan,
        readers: list[ChildProcess],
        victims: Sequence[ChildProcess] = (),
        is_mortal: bool = False,
    ) -> None:
        """Run one writer, which all readers read."""
        writer = self._start("write", number, plan)
        handles = writer.receive()
        for reader in [*readers, *victims]:
            reader.send((number, handles))
        tallies = [tally for victim in victims for tally in self._kill(victim)]
        for reader in readers:
            tallies += reader.receive()
        try:
            writer.send("stop")
            published, theirs = writer.receive()
        except (EOFError, ConnectionError):
            # Only a killable writer dies; it may also be stopped before it is killed.
            assert is_mortal
            self._totals["writers killed"] += 1
            self._judge(tallies, is_complete=False)
        else:
            self._judge([*tallies, *theirs])
            self._compare([*tallies, *theirs], published)

    def _kill(self, victim: ChildProcess) -> list[Tally]:
        """Kill a process that is reading; return the tallies that it sent to report failures."""
        tallies: list[Tally] = []
        message = victim.receive()
        victim.kill()
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                if message != "under way":
                    tallies += message
                message = victim.receive()
        self._totals["readers killed"] += 1
        return tallies

    def _judge(self, tallies: list[Tally], is_complete: bool = True) -> None:
        """Check that all reads were correct, and that only a killed writer was lost."""
        for tally in tallies:
            assert tally.failure is None, tally.failure
            assert not (tally.has_lost and is_complete)
        self._totals["held"] += sum(len(tally.steps) for tally in tallies)
        self._totals["reads"] += sum(tally.reads for tally in tallies)
        self._totals["bytes"] += sum(tally.nbytes for tally in tallies)
        self._totals["given up in time"] += sum(tally.late for tally in tallies)

    def _compare(self, tallies: list[Tally], published: list[tuple[list[int], str | None]]) -> None:
        """Check that all versions that were read are among the published ones."""
        for buffer, (steps, failure) in enumerate(published):
            assert failure is None, failure
            assert sorted(set(steps)) == sorted(steps)
            seen = [tally.steps for tally in tallies if tally.buffer == buffer]
            assert set().union(*seen) <= set(steps)
            self._totals["published"] += len(steps)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_version_is_torn(fork_server: ForkServer, totals: Counter[str], seed: int) -> None:
    ScenarioRun(fork_server, scenario_of(Random(seed)), totals).run()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_version_is_torn_in_a_long_run(fork_server: ForkServer, totals: Counter[str]) -> None:
    for seed in range(SEEDS, SEEDS_SLOW):
        try:
            ScenarioRun(fork_server, scenario_of(Random(seed)), totals).run()
        except BaseException as error:
            error.add_note(f"in the scenario of seed {seed}")
            raise
