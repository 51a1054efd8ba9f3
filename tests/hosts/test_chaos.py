"""Chaos detects the defects of a workload, and reports no defect of a correct one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping

import pytest

from tests.hosts.chaos.echo import EchoWorkload
from tests.hosts.chaos.fault_kinds import FAULT_KINDS, planned_faults
from tests.hosts.chaos.ledger import Balance, Ledger
from tests.hosts.chaos.recovery import percentile
from tests.hosts.chaos.run import Settings, run
from tests.hosts.conftest import Worlds
from tests.hosts.world import Host

#: Barely longer than one fault of each kind.
BRIEF = Settings(seconds=4.0, hosts=3, every_s=0.25, hold_max_s=0.3, hang_s=20.0)


def test_echo_survives_every_kind_of_fault(worlds: Worlds) -> None:
    said: list[str] = []
    verdict = run(EchoWorkload(), BRIEF, said.append)
    assert verdict.is_right, str(verdict)
    assert verdict.faults == len(said) == len(FAULT_KINDS)
    assert set(verdict.times) == set(FAULT_KINDS)
    assert verdict.balance.answered > 100
    assert set(verdict.balance.failed) <= {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "TimeoutError",
        "end of connection",
    }


class Duplicating(EchoWorkload):
    """Executes some calls twice, like a client that retries without need."""

    def call(self, number: int, host: Host) -> None:
        super().call(number, host)
        if number % 10 == 0:
            super().call(number, host)


class Losing(EchoWorkload):
    """Sometimes replies without executing the call."""

    def call(self, number: int, host: Host) -> None:
        if number % 10:
            super().call(number, host)


class Untyped(EchoWorkload):
    """Fails with an unexpected error."""

    def call(self, number: int, host: Host) -> None:
        if number % 10 == 0:
            raise KeyError("oh")
        super().call(number, host)


class Hanging(EchoWorkload):
    """Never returns from one of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self._for_ever = threading.Event()

    def call(self, number: int, host: Host) -> None:
        if number == 10:
            self._for_ever.wait()
        super().call(number, host)

    def stop(self) -> None:
        super().stop()
        self._for_ever.set()


class Unrecovered(EchoWorkload):
    """Does not recover after its process has died."""

    def restore(self, host: Host) -> None:
        if not self._servers.get(host.name):
            super().restore(host)


class FalselyDead(EchoWorkload):
    """Declares a host dead whose power was not cut."""

    def declared_dead(self) -> Mapping[str, int]:
        return {"h1": 1}


def test_living_host_that_is_declared_dead_is_counted(worlds: Worlds) -> None:
    verdict = run(FalselyDead(), Settings(seconds=0.5, hosts=2, concurrency=2, hang_s=1.0))
    assert not verdict.is_right
    assert verdict.misjudged == {"h1": 1}


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (Duplicating, lambda balance: balance.duplicated),
        (Losing, lambda balance: balance.lost),
        (Untyped, lambda balance: balance.untyped.get("KeyError('oh')", 0)),
        (Hanging, lambda balance: balance.hung),
    ],
    ids=["duplicated", "lost", "untyped", "hung"],
)
def test_each_kind_of_violation_is_counted(
    worlds: Worlds, make: Callable[[], EchoWorkload], count: Callable[[Balance], int]
) -> None:
    verdict = run(make(), Settings(seconds=0.5, hosts=2, concurrency=2, hang_s=1.0))
    assert not verdict.is_right
    assert count(verdict.balance) >= 1, str(verdict)


def test_an_unresponsive_host_is_named(worlds: Worlds) -> None:
    kills_first = next(
        seed for seed in itertools.count() if next(planned_faults(seed, 1, 1.0)).kind == "kill"
    )
    settings = Settings(seconds=9.0, seed=kills_first, hosts=2, every_s=0.25, hang_s=0.5)
    verdict = run(Unrecovered(), settings)
    assert not verdict.is_right
    assert verdict.silent == ["h1 after kill"]
    assert verdict.faults == 1


def test_ledger_adds_up() -> None:
    ledger = Ledger()
    for _ in range(6):
        ledger.send()
    for number in (1, 2, 3):
        ledger.answer(number)
    ledger.fail(4, "Died", is_typed=True)
    ledger.fail(5, "Bug", is_typed=False)
    balance = ledger.balance({1: 1, 2: 2, 4: 1, 99: 1})
    assert (balance.sent, balance.answered, balance.failed) == (6, 3, {"Died": 1})
    assert (balance.untyped, balance.hung) == ({"Bug": 1}, 1)
    assert (balance.lost, balance.duplicated, balance.invented) == (1, 1, 1)


def test_the_same_seed_plans_the_same_faults() -> None:
    def first(seed: int) -> list[object]:
        return list(itertools.islice(planned_faults(seed, 3, 1.0), 40))

    assert first(7) == first(7)
    assert first(7) != first(8)
    kinds = [
        planned.kind for planned in itertools.islice(planned_faults(7, 3, 1.0), len(FAULT_KINDS))
    ]
    assert sorted(kinds) == sorted(FAULT_KINDS)


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 2.0), (75, 3.0), (76, 4.0), (100, 4.0), (1, 1.0)]
)
def test_percentile(percent: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == expected
