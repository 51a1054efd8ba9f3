"""Random writers and readers of versioned buffers, also dying ones; no reader sees torn data."""

from __future__ import annotations

import contextlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import version_players
from nursery import Child, Nursery
from version_games import game_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from version_plans import Game, Tally, WriterPlan

# The number of games of each run, and of a long run.
SEEDS = 30
SEEDS_SLOW = 400


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(version_players.__file__) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def totals() -> Iterator[Counter[str]]:
    totals: Counter[str] = Counter()
    yield totals
    print("\nof versioned buffers:", dict(totals))


class Play:
    """One game, played in processes of a nursery."""

    def __init__(self, nursery: Nursery, game: Game, totals: Counter[str]) -> None:
        self._nursery = nursery
        self._game = game
        self._totals = totals
        self._channels = contextlib.ExitStack()

    def run(self) -> None:
        """Play the game to its end; fail if a reader saw a version that was never published."""
        with self._channels:
            readers = [self._start("read", plans, False) for plans in self._game.readers]
            *mortal, last = self._game.writers
            for number, plan in enumerate(mortal):
                self._live(number, plan, readers, is_mortal=True)
            victims = [self._start("read", plans, True) for plans in self._game.victims]
            self._live(len(mortal), last, readers, victims)

    def _start(self, role: str, *arguments: Any) -> Child:
        child = self._nursery.start(role, *arguments)
        self._channels.enter_context(child.channel)
        return child

    def _live(
        self,
        number: int,
        plan: WriterPlan,
        readers: list[Child],
        victims: Sequence[Child] = (),
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
            # Only a mortal writer dies; it may also be stopped before it is killed.
            assert is_mortal
            self._totals["writers killed"] += 1
            self._judge(tallies, is_complete=False)
        else:
            self._judge([*tallies, *theirs])
            self._compare([*tallies, *theirs], published)

    def _kill(self, victim: Child) -> list[Tally]:
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
def test_no_version_is_torn(nursery: Nursery, totals: Counter[str], seed: int) -> None:
    Play(nursery, game_of(Random(seed)), totals).run()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_version_is_torn_for_long(nursery: Nursery, totals: Counter[str]) -> None:
    for seed in range(SEEDS, SEEDS_SLOW):
        try:
            Play(nursery, game_of(Random(seed)), totals).run()
        except BaseException as error:
            error.add_note(f"in the game of seed {seed}")
            raise
