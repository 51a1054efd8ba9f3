"""The tree along which a buffer is copied to many destinations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mesh_rdma._collectives.tree import chunk_len, fan_out, parents

MACHINES = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=40)


@given(MACHINES, st.integers(1, 1 << 34), st.integers(1, 5))
def test_each_host_is_sent_the_bytes_once(machines: list[str], nbytes: int, width: int) -> None:
    above = parents(machines, "a", nbytes, width)
    arrivals = [
        place for place, one in enumerate(above)
        if machines[place] != ("a" if one is None else machines[one])
    ]  # fmt: skip
    assert sorted(machines[place] for place in arrivals) == sorted(set(machines) - {"a"})


@given(MACHINES, st.integers(1, 5))
def test_every_path_leads_back_to_the_source(machines: list[str], width: int) -> None:
    above = parents(machines, "a", 1 << 20, width)
    for place in range(len(machines)):
        seen = set()
        one: int | None = place
        while one is not None:
            assert one not in seen
            seen.add(one)
            one = above[one]


def test_long_buffers_use_a_chain_and_short_ones_a_flat_tree() -> None:
    assert fan_out(8, 1 << 30) == 1
    assert fan_out(8, 4096) == 8
    assert 1 < fan_out(1000, 64 << 20) < 8


def test_chunks_are_whole_pages() -> None:
    assert all(chunk_len(nbytes) % 4096 == 0 for nbytes in (1, 1 << 20, (1 << 28) + 5, 1 << 40))
