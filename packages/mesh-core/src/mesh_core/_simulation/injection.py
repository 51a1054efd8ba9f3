"""Injects faults into a simulated cluster at times that a seed selects."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import random

    from mesh_core._simulation.faults import SimulatedFaults
    from mesh_core._simulation.world import World

__all__ = ["inject", "mailbox_len"]

# The earliest time of a fault, and the durations of stalls and partitions, in seconds.
_FIRST_S = 0.001
_STALL_S = (0.001, 3.0)
_PARTITION_MIN_S = 0.01
_SLOWNESS = (2, 50)
_MAILBOX_LENS = (1, 2, 8, 64)


def mailbox_len(faults: SimulatedFaults, draw: random.Random) -> int | None:
    """Draw the length of mailboxes; None for the configured one."""
    return draw.choice(_MAILBOX_LENS) if faults.full_mailboxes and _is_on(draw) else None


def inject(faults: SimulatedFaults, world: World, draw: random.Random) -> None:
    """Schedule the faults of a cluster."""
    actions = [
        (faults.kills, lambda: _kill(world, draw)),
        (faults.host_kills, lambda: _kill_host(world, draw)),
        (faults.stalls, lambda: _stall(world, draw)),
        (faults.breaks, lambda: _break_connection(world, draw)),
        (faults.partitions, lambda: _partition(world, draw, faults.partition_s)),
    ]
    for most, action in actions:
        for _ in range(_count(draw, most)):
            world.scheduler.after(_between(draw, _FIRST_S, faults.within_s), action)
    for _ in range(_count(draw, faults.slow_hosts)):
        world.slow_down(draw.choice([0, *sorted(world.agents)]), draw.randint(*_SLOWNESS))


def _count(draw: random.Random, most: int) -> int:
    return draw.randint(1, most) if most and _is_on(draw) else 0


def _is_on(draw: random.Random) -> bool:
    return draw.random() < 0.5


def _between(draw: random.Random, low_s: float, high_s: float) -> float:
    """Draw a time whose exponent is uniform."""
    factor: float = (max(high_s, low_s) / low_s) ** draw.random()
    return low_s * factor


def _kill(world: World, draw: random.Random) -> None:
    if world.processes:
        world.kill(draw.choice(world.processes))


def _kill_host(world: World, draw: random.Random) -> None:
    if world.agents:
        world.kill_host(draw.choice(sorted(world.agents)))


def _stall(world: World, draw: random.Random) -> None:
    if world.processes:
        world.stall(draw.choice(world.processes), _between(draw, *_STALL_S))


def _break_connection(world: World, draw: random.Random) -> None:
    if world.processes:
        world.break_connection(draw.choice(world.processes))


def _partition(world: World, draw: random.Random, most_s: float) -> None:
    hosts = sorted(world.agents)
    if hosts:
        chosen = draw.sample(hosts, draw.randint(1, len(hosts)))
        world.partition(chosen, _between(draw, _PARTITION_MIN_S, most_s))
