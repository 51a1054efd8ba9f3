"""From which step and copy each rank continues."""

from __future__ import annotations

import itertools

from mesh_tensor._training.restore_plan import Copy, plan_restore

SIZE = 3


def own(*steps: int) -> list[Copy]:
    """The checkpoints that ranks have in their own memory: the last two steps of each."""
    return [
        Copy(rank, rank, step)
        for rank, last in enumerate(steps)
        for step in (last - 1, last)
        if last >= 0
    ]


def copies(*steps: int) -> list[Copy]:
    """The copies that the next rank has of the checkpoints of each rank."""
    return [Copy(rank, (rank + 1) % SIZE, last) for rank, last in enumerate(steps) if last >= 0]


def test_equal_states_need_only_one_survivor() -> None:
    plan = plan_restore(own(-1, 9, 8), range(SIZE), is_sharded=False)
    assert plan is not None
    assert plan.step == 9
    assert [one[0].member for one in plan.candidates] == [1, 1, 1]


def test_a_rank_prefers_its_own_memory() -> None:
    plan = plan_restore([*own(9, 9, 9), *copies(9, 9, 9)], range(SIZE), is_sharded=True)
    assert plan is not None
    for rank, one in enumerate(plan.candidates):
        assert [copy.holder for copy in one] == [rank, (rank + 1) % SIZE]


def test_a_lost_shard_is_restored_from_its_holder() -> None:
    plan = plan_restore([*own(-1, 9, 9), *copies(8, 9, -1)], range(SIZE), is_sharded=True)
    assert plan is not None
    assert plan.step == 8
    assert plan.candidates[0][0].holder == 1


def test_a_lost_shard_without_a_copy_cannot_be_restored() -> None:
    assert plan_restore([*own(-1, 9, 9), *copies(-1, 9, 9)], range(SIZE), is_sharded=True) is None


def test_damaged_copies_are_left_out() -> None:
    found = own(9, 9, 9)
    damaged = [copy for copy in found if copy.step == 9]
    plan = plan_restore(found, range(SIZE), is_sharded=False, damaged=damaged)
    assert plan is not None
    assert plan.step == 8


def test_before_the_first_step_all_ranks_load_the_state_of_rank_0() -> None:
    plan = plan_restore(
        [Copy(rank, rank, 0) for rank in range(SIZE)], range(SIZE), is_sharded=False
    )
    assert plan is not None
    assert [one[0].member for one in plan.candidates] == [0, 0, 0]


def test_any_one_rank_may_be_lost_at_any_moment() -> None:
    """Ranks differ by at most one step, and a copy is at most one step behind."""
    for lost, ahead in itertools.product(range(SIZE), itertools.product((0, 1), repeat=SIZE)):
        steps = [5 + one for one in ahead]
        held = [5] * SIZE
        found = [copy for copy in [*own(*steps), *copies(*held)] if copy.holder != lost]
        plan = plan_restore(found, range(SIZE), is_sharded=True)
        assert plan is not None
        assert plan.step >= max(steps) - 1
