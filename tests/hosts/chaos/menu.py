"""What chaos may do, and what it chooses to do: the same for the same seed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.hosts.chaos.workload import Workload
from tests.hosts.world import Fault, Host, World

#: The shortest that a fault stays, unless it is over at once.
HOLD_MIN_S = 0.05

#: A link that is slow, and a way that is long.
SLOW_BITS_PER_S = 2_000_000
LONG_S = 0.1


@dataclass(frozen=True)
class Choice:
    """One fault, before it is made."""

    kind: str
    number: int
    """Which of the hosts, not counting the first."""
    hold_s: float
    chance: float
    """Between 0 and 1, for whatever else is left to chance."""


@dataclass(frozen=True)
class Dish:
    """One kind of fault."""

    make: Callable[[World, Host, Workload, float], Fault]
    stays: bool = True
    """Whether it lasts; else it is over as soon as it was made."""
    takes: bool = False
    """Whether it takes something away that has to be restored."""
    is_of_all: bool = False
    """Whether it is about all hosts and not one."""


def choices(seed: int, hosts: int, hold_max_s: float) -> Iterator[Choice]:
    """Yields what to do, for ever; every kind comes up once before any comes up again.

    Short faults are as likely as long ones: the time they stay is drawn on a scale of magnitudes.
    """
    chance = random.Random(seed)
    while True:
        kinds = sorted(MENU)
        chance.shuffle(kinds)
        for kind in kinds:
            hold_s = HOLD_MIN_S * (hold_max_s / HOLD_MIN_S) ** chance.random()
            yield Choice(kind, chance.randrange(hosts), hold_s, chance.random())


def _kill(world: World, host: Host, workload: Workload, chance: float) -> Fault:
    pid = _victim(workload.victims(host), chance)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return Fault(f"kill of {pid} on {host.name}", lambda: None)


def _stop(world: World, host: Host, workload: Workload, chance: float) -> Fault:
    pid = _victim(workload.victims(host), chance)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)

    def heal() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return Fault(f"stop of {pid} on {host.name}", heal)


def _victim(pids: Sequence[int], chance: float) -> int:
    assert pids, "nobody there to kill"
    return sorted(pids)[int(chance * len(pids))]


def _client(world: World) -> Host:
    return world.hosts[0]


MENU: dict[str, Dish] = {
    "kill": Dish(_kill, stays=False, takes=True),
    "stop": Dish(_stop),
    "pause": Dish(lambda world, host, *_: world.faults.pause(host)),
    "partition": Dish(lambda world, host, *_: world.faults.partition([host])),
    "drop one way": Dish(
        lambda world, host, *_: world.faults.drop(host, _client(world), is_one_way=True)
    ),
    "link down": Dish(lambda world, host, *_: world.faults.link_down(host)),
    "reset": Dish(lambda world, host, *_: world.faults.reset(_client(world), host)),
    "reset once": Dish(
        lambda world, host, *_: world.faults.reset_once(_client(world), host), stays=False
    ),
    "loss": Dish(lambda world, *_: world.faults.loss(20), is_of_all=True),
    "slow link": Dish(lambda world, host, *_: world.faults.bandwidth(host, SLOW_BITS_PER_S)),
    "long link": Dish(
        lambda world, host, _, chance: world.faults.delay(
            _client(world), host, LONG_S * chance, jitter_s=LONG_S / 10
        )
    ),
    "power cut": Dish(lambda world, host, *_: world.faults.power_cut(host), takes=True),
}
