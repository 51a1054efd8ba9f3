"""The part of an array in each buffer, and the copies that reshard it."""

from __future__ import annotations

import pickle
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_rdma import Layout, Replicate, Schedule, Shard, join_schedules, plan_reshard

ITEM = np.dtype("<u4")


class _TorchShard:
    """Has the same interface as `torch.distributed.tensor.Shard`."""

    def __init__(self, dim: int) -> None:
        self.dim = dim


def _cut(layout: Layout, whole: np.ndarray) -> list[bytearray]:
    """Return the content of each buffer."""
    return [bytearray(np.ascontiguousarray(whole[layout.slices(i)]).tobytes())
            for i in range(len(layout.shards))]  # fmt: skip


def _run(schedule: Schedule, srcs: list[bytearray], dsts: list[bytearray]) -> None:
    """Execute a schedule, byte by byte."""
    for move in schedule.moves:
        rows = [(move.from_, move.to)]
        for count, a, b in move.dims:
            rows = [(x + i * a, y + i * b) for x, y in rows for i in range(count)]
        for x, y in rows:
            dsts[move.dst][y : y + move.row_len] = srcs[move.src][x : x + move.row_len]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, Layout]:
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    dims = st.integers(0, len(shape) - 1)
    places = st.one_of(st.builds(Shard, dims), st.just(Replicate()))

    def layout() -> Layout:
        mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
        placements = [draw(places) for _ in mesh]
        return Layout.of(shape, ITEM.itemsize, mesh, placements)

    return layout(), layout()


@given(layouts())
def test_every_destination_gets_its_part(pair: tuple[Layout, Layout]) -> None:
    src, dst = pair
    whole = np.arange(prod(src.shape), dtype=ITEM).reshape(src.shape)
    schedule = pickle.loads(pickle.dumps(plan_reshard(src, dst)))
    filled = [bytearray(len(part)) for part in _cut(dst, whole)]
    _run(schedule, _cut(src, whole), filled)
    assert filled == _cut(dst, whole)
    assert schedule.nbytes == sum(map(len, filled))


@given(layouts(), st.lists(st.integers(0, 50), min_size=2, max_size=2))
def test_schedules_of_two_arrays_in_the_same_buffers_can_be_joined(
    pair: tuple[Layout, Layout], gaps: list[int]
) -> None:
    src, dst = pair
    whole = np.arange(prod(src.shape), dtype=ITEM).reshape(src.shape)
    parts, wanted = _cut(src, whole), _cut(dst, whole)
    first = plan_reshard(src, dst)
    second = plan_reshard(
        src.at([len(part) + gaps[0] for part in parts]),
        dst.at([len(part) + gaps[1] for part in wanted]),
    )
    srcs = [part + bytearray(gaps[0]) + part for part in parts]
    dsts = [bytearray(2 * len(part) + gaps[1]) for part in wanted]
    _run(join_schedules([first, second]), srcs, dsts)
    assert dsts == [part + bytearray(gaps[1]) + part for part in wanted]


@pytest.mark.parametrize(
    ("shape", "mesh", "placements", "sizes"),
    [
        ((10,), [4], [Shard(0)], [(3,), (3,), (3,), (1,)]),
        ((5,), [4], [Shard(0)], [(2,), (2,), (1,), (0,)]),
        ((8, 6), {"dp": 2, "tp": 2}, [Replicate(), Shard(1)], [(8, 3)] * 4),
        ((8, 6), [2, 2], [Shard(0), Shard(0)], [(2, 6)] * 4),
        ((8, 6), [2], [_TorchShard(-1)], [(8, 3)] * 2),
    ],
)
def test_parts_match_the_sharding_of_torch(
    shape: tuple[int, ...],
    mesh: list[int] | dict[str, int],
    placements: list[Any],
    sizes: list[tuple[int, ...]],
) -> None:
    assert [box.sizes for box in Layout.of(shape, 4, mesh, placements).shards] == sizes


def test_replicas_send_similar_amounts() -> None:
    src = Layout.of((64, 64), 4, [4, 2], [Replicate(), Shard(0)])
    dst = Layout.of((64, 64), 4, [8], [Shard(1)])
    gives = plan_reshard(src, dst).bytes_per_source()
    assert max(gives) <= 2 * min(gives)


def test_a_replica_on_the_same_machine_is_preferred() -> None:
    src = Layout.of((8,), 4, [4], [Replicate()])
    schedule = plan_reshard(src, src, src_machines="abcd", dst_machines="ddda")
    assert [move.src for move in schedule.moves] == [3, 3, 3, 0]


def test_adjacent_runs_are_merged() -> None:
    rows = Layout.of((8, 6), 4, [2], [Shard(0)])
    (move,) = plan_reshard(rows, Layout.of((8, 6), 4, [4], [Shard(0)])).moves[:1]
    assert (move.row_len, move.dims) == (2 * 6 * 4, ())
    whole = Layout.of((8, 6), 4, [1], [Replicate()])
    assert len(plan_reshard(rows, whole).moves) == 2


def test_invalid_layouts_are_refused() -> None:
    half = Layout((8,), 4, (((0,), (4,)),))
    with pytest.raises(ValueError, match="no source contains"):
        plan_reshard(half, Layout.of((8,), 4, [1], [Replicate()]))
    with pytest.raises(ValueError, match="two layouts of one array"):
        plan_reshard(half, Layout.of((9,), 4, [1], [Replicate()]))
    with pytest.raises(ValueError, match="not inside"):
        Layout((8,), 4, (((4,), (5,)),))
    with pytest.raises(ValueError, match="invalid placement"):
        Layout.of((8,), 4, [1], ["Partial"])
