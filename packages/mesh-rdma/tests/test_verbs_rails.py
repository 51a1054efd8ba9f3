"""Splitting, distribution and recovery of transfers, over fake adapters of this test."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verbs_fabric import Fabric
from verbs_link import FabricLink

from mesh_rdma import RDMAError, RDMAPeerDied, RDMAReleased
from mesh_rdma._errors import RDMATransportError
from mesh_rdma.spi import Kind, Region

MIB = 1 << 20

Links = Callable[..., FabricLink]


@pytest.fixture
def links(tmp_path: Path) -> Links:
    """Create links, each over a separate fabric."""
    numbers = iter(range(100))

    def make(**fabric: object) -> FabricLink:
        folder = tmp_path / str(next(numbers))
        return FabricLink(Fabric(**fabric), folder, 4 * MIB)  # type: ignore[arg-type]

    return make


def test_a_transfer_is_split_over_all_lanes_within_the_port_limit(links: Links) -> None:
    link = links(message_max=100_000)
    link.there[:] = random.randbytes(4 * MIB)
    assert link.do(Kind.READ, 3, 4 * MIB - 10, 7) is None
    assert link.here[3 : 4 * MIB - 7] == link.there[7 : 4 * MIB - 3]
    sums = [sum(lengths) for lengths in link.fabric.carried.values()]
    assert len(sums) == 2
    assert sum(sums) == 4 * MIB - 10
    assert max(sums) - min(sums) <= 100_000
    assert max(map(max, link.fabric.carried.values())) == 100_000


def test_a_single_lane_carries_a_transfer_in_one_piece(links: Links) -> None:
    link = links(names=["only"])
    assert link.do(Kind.WRITE, 0, 4 * MIB, 0) is None
    assert link.fabric.carried == {"only": [4 * MIB]}


@settings(max_examples=40)
@given(
    wishes=st.lists(
        st.tuples(st.booleans(), st.integers(0, 5000), st.integers(0, 3000), st.integers(0, 3000)),
        max_size=40,
    ),
    message_max=st.integers(1000, 6000),
    steps=st.integers(1, 5),
)
def test_any_sequence_of_transfers_equals_a_plain_copy(
    tmp_path_factory: pytest.TempPathFactory,
    wishes: list[tuple[bool, int, int, int]],
    message_max: int,
    steps: int,
) -> None:
    fabric = Fabric(message_max=message_max, steps_per_poll=steps, queue_len_max=8)
    link = FabricLink(fabric, tmp_path_factory.mktemp("fabric") / "f", 8192)
    link.there[:], link.here[:] = random.randbytes(8192), random.randbytes(8192)
    here, there = bytearray(link.here[:]), bytearray(link.there[:])
    for is_read, nbytes, offset, remote_offset in wishes:
        kind = Kind.READ if is_read else Kind.WRITE
        assert link.do(kind, offset, nbytes, remote_offset) is None
        if is_read:
            here[offset : offset + nbytes] = there[remote_offset : remote_offset + nbytes]
        else:
            there[remote_offset : remote_offset + nbytes] = here[offset : offset + nbytes]
    assert link.here[:] == here
    assert link.there[:] == there
    link.close()
    assert not fabric.regions
    assert not fabric.pairs


def test_few_of_many_requests_signal_a_completion(links: Links) -> None:
    link = links(names=["only"], queue_len_max=64, steps_per_poll=0)
    requests = [link.post(Kind.READ, n, 1, n) for n in range(400)]
    link.fabric.steps_per_poll = 64
    assert link.finish(400) == dict.fromkeys(requests)
    posts = [post for post in link.fabric.signalled if len(post) > 1]
    assert max(map(len, posts)) == 64
    assert all(post[-1] for post in posts)
    assert sum(map(sum, posts)) <= sum(map(len, posts)) / 10


def test_refused_request_fails_alone(links: Links) -> None:
    link = links(steps_per_poll=0)
    requests = [link.post(Kind.READ, n * 8, 8, n * 8) for n in range(10)]
    bad = link.post(Kind.READ, 0, 8, 0, descriptor=link.forged())
    adds = [link.post(Kind.FETCH_ADD, 800 + n * 8, 8, 0, operand=1) for n in range(10)]
    bad_add = link.post(Kind.FETCH_ADD, 0, 8, 0, descriptor=link.forged(), operand=1)
    adds += [link.post(Kind.FETCH_ADD, 960 + n * 8, 8, 0, operand=1) for n in range(10)]
    requests += [link.post(Kind.READ, n * 8, 8, n * 8) for n in range(10, 20)]
    link.fabric.steps_per_poll = 100
    ended = link.finish(42)
    assert {type(ended.pop(one)) for one in (bad, bad_add)} == {RDMAReleased}
    assert ended == dict.fromkeys([*requests, *adds])
    assert int.from_bytes(link.there[:8], "little") == 20


def test_an_addition_with_an_unknown_outcome_is_not_repeated(links: Links) -> None:
    link = links(steps_per_poll=0)
    first = link.post(Kind.FETCH_ADD, 0, 8, 0, operand=1)
    other = link.post(Kind.FETCH_ADD, 8, 8, 0, operand=1)
    link.channel.abort(first)
    link.fabric.steps_per_poll = 100
    ended = link.finish(1)
    assert "not known" in str(ended[other])
    assert link.do(Kind.FETCH_ADD, 8, 8, 8, operand=1) is None


def test_an_aborted_transfer_is_not_reported_and_others_continue(links: Links) -> None:
    link = links(steps_per_poll=0)
    link.there[:] = b"\1" * 4 * MIB
    aborted = link.post(Kind.READ, 0, 2 * MIB, 0)
    other = link.post(Kind.READ, 2 * MIB, 2 * MIB, 0)
    link.channel.abort(aborted)
    assert link.here[: 2 * MIB] == bytes(2 * MIB)
    link.fabric.steps_per_poll = 100
    assert link.finish(1) == {other: None}
    assert link.here[:] == bytes(2 * MIB) + b"\1" * 2 * MIB
    link.channel.abort(aborted)
    link.channel.abort(other)


def test_the_abort_of_a_write_replaces_the_remote_ends_of_its_lanes(links: Links) -> None:
    link = links(steps_per_poll=0)
    theirs = set(link.fabric.pairs)
    request = link.post(Kind.WRITE, 0, 4 * MIB, 0)
    link.channel.abort(request)
    assert not theirs & set(link.fabric.pairs)


def test_an_unresponsive_peer_fails_current_requests_and_later_ones_reconnect(links: Links) -> None:
    link = links(steps_per_poll=0)
    requests = [link.post(Kind.READ, n * 8, 8, 0) for n in range(3)]
    link.owner_pairs_vanish()
    link.fabric.steps_per_poll = 100
    ended = link.finish(3)
    assert {type(ended[one]) for one in requests} == {RDMAPeerDied}
    assert link.do(Kind.READ, 0, 8, 0) is None


def test_a_death_is_reported_although_the_memory_is_released_first(links: Links) -> None:
    link = links(steps_per_poll=0)
    request = link.post(Kind.READ, 0, 8, 0)
    link.registration.release()
    link.death = RDMAPeerDied("it was killed")
    link.fabric.steps_per_poll = 100
    error = link.finish(1)[request]
    assert isinstance(error, RDMAPeerDied)
    assert "it was killed" in str(error)


def test_each_transfer_gets_a_separate_exception_for_a_death(links: Links) -> None:
    link = links(steps_per_poll=0)
    requests = [link.post(Kind.READ, 8 * n, 8, 0) for n in range(2)]
    link.registration.release()
    link.death = RDMAPeerDied("it was killed")
    link.fabric.steps_per_poll = 100
    # Each transfer raises a separate exception, which does not keep the frames of the others alive.
    assert len({id(error) for error in link.finish(2).values()}) == len(requests)
    told: list[BaseException] = []
    for _ in range(2):
        with pytest.raises(RDMAPeerDied, match="it was killed") as caught:
            link.post(Kind.READ, 0, 8, 0)
        told.append(caught.value)
    first, second = told
    assert first is not second


def test_a_lane_that_cannot_connect_is_skipped(links: Links) -> None:
    link = links(unconnectable={"fake1"})
    assert link.do(Kind.READ, 0, 4 * MIB, 0) is None
    assert list(link.fabric.carried) == ["fake0"]


def test_the_error_says_why_no_lane_can_connect(links: Links) -> None:
    with pytest.raises(RDMATransportError, match="verbs: nothing can be connected: the other end"):
        links(unconnectable={"fake0", "fake1"})


def test_a_rail_with_a_full_queue_is_replaced(links: Links) -> None:
    link = links(names=["only"])
    for pair in link.fabric.pairs.values():
        pair.is_full = True
    # The rail is replaced, and the next transfer uses it.
    assert link.do(Kind.READ, 0, 8, 0) is None


def test_a_closed_channel_fails_its_transfers_and_leaves_no_resources(links: Links) -> None:
    link = links(steps_per_poll=0)
    posted = [link.post(Kind.READ, 0, 8, 0), link.post(Kind.FETCH_ADD, 8, 8, 0)]
    link.close()
    ended = link.finish(2)
    assert all(isinstance(ended[one], RDMAError) for one in posted)
    assert not link.fabric.pairs
    assert not link.fabric.regions
    with pytest.raises(RDMATransportError, match="the channel was closed"):
        link.post(Kind.READ, 0, 8, 0)


def test_queue_pairs_of_dead_users_are_closed_when_others_connect(links: Links) -> None:
    link = links()
    alone = len(link.fabric.pairs)
    for _ in range(5):
        user = link.another_user()
        # The user dies without notice.
        for number in user:
            link.fabric.pairs.pop(number)
    # Only the pairs of the last two users remain, because they have not been probed yet.
    assert len(link.fabric.pairs) <= alone + 2 * 2
    assert link.do(Kind.READ, 0, 8, 0) is None


def test_memory_reuses_a_registration_or_gets_a_temporary_one(links: Links) -> None:
    link = links(names=["only"])
    keys = set(link.fabric.regions)
    assert link.do(Kind.READ, 100, 8, 0) is None
    assert set(link.fabric.regions) == keys
    other = mmap.mmap(-1, 100)
    link.fabric.steps_per_poll = 0
    request = link.post_region(Kind.WRITE, link.region_of(other))
    assert len(set(link.fabric.regions) - keys) == 1
    link.fabric.steps_per_poll = 100
    assert link.finish(1) == {request: None}
    assert set(link.fabric.regions) == keys


def test_memory_that_no_adapter_can_register_is_an_error(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = links(names=["only"])

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("verbs_fabric.FabricDevice.register", refuse)
    with pytest.raises(RDMATransportError, match="cannot register 8 bytes"):
        link.user.register(Region(4096, 8, True))
    request = link.post_region(Kind.WRITE, Region(4096, 8, True))
    assert isinstance(link.finish(1)[request], RDMAError)
