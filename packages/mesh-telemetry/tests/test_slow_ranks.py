"""The slow ranks, determined only from the times of their collectives."""

from __future__ import annotations

import random

import pytest

from mesh_telemetry._collectives.collectives_file import Collective, ProcessGroup
from mesh_telemetry._hangs.process_state import ProcessState
from mesh_telemetry._hangs.slow_ranks import find_slow_ranks

S = 1_000_000_000
STEP_S = 0.010
STEPS = 100
RANKS = 8


def states(seed: int, slow: dict[int, float], noise: float = 0.1) -> list[ProcessState]:
    """Simulate training in which every step ends when the last rank has joined.

    Args:
        seed: The seed of the noise.
        slow: How much more time ranks need, by their rank.
        noise: The standard deviation of the time of a step, as a share.
    """
    chance = random.Random(seed)
    # The clocks of the hosts differ by hours.
    clocks = [chance.randrange(10_000) * S for _ in range(RANKS)]
    begun = 0.0
    calls: list[list[Collective]] = [[] for _ in range(RANKS)]
    for step in range(STEPS):
        entered = [
            begun + STEP_S * (1 + slow.get(rank, 0.0)) * max(0.5, chance.gauss(1.0, noise))
            for rank in range(RANKS)
        ]
        if chance.random() < 0.02:
            # One rank pauses for long, as for a checkpoint.
            entered[chance.randrange(RANKS)] += 20 * STEP_S
        begun = max(entered) + 0.0005
        for rank in range(RANKS):
            calls[rank].append(
                Collective(
                    step, 0, -1, step, clocks[rank] + int(entered[rank] * S),
                    clocks[rank] + int(begun * S), 4, 1, False, False, 1, "all_reduce", "", "", "",
                )
            )  # fmt: skip
    return [
        ProcessState(
            rank, f"node{rank}", 1, "train", rank, rank, 0, "S", False, 0.0, 0,
            (ProcessGroup(0, "0", "node:1", tuple(range(RANKS)), rank, "gloo"),),
            tuple(calls[rank]), (), (), (),
        )
        for rank in range(RANKS)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_is_five_percent_slower_is_found(seed: int) -> None:
    (slow,) = find_slow_ranks(states(seed, {seed % RANKS: 0.05}, noise=0.02))
    assert slow.rank == seed % RANKS
    assert 0.03 <= slow.excess <= 0.07
    assert f"rank {slow.rank} of 'train'" in str(slow)


def test_healthy_ranks_are_not_reported() -> None:
    for seed in range(100):
        assert find_slow_ranks(states(seed, {}, noise=0.1)) == []


def test_a_few_operations_are_not_enough_to_find_a_slow_rank() -> None:
    few = [one._replace(collectives=one.collectives[:50]) for one in states(1, {3: 0.5})]
    assert find_slow_ranks(few) == []


def test_two_slow_ranks_on_one_host_are_both_found() -> None:
    found = find_slow_ranks(states(1, {2: 0.2, 3: 0.3}, noise=0.02))
    assert sorted(one.rank for one in found) == [2, 3]
