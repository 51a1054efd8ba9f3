"""Copies from one buffer to many along a tree of hosts, with deaths in the tree."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killable_processes import KillableProcess, pattern

from mesh_core import CallCancelled
from mesh_rdma import (
    RDMABoundsError,
    RDMABuffer,
    RDMAIncomplete,
    RDMAPeerDied,
    RDMATimeout,
    RDMATransportError,
    _core,
    replicate,
    spread,
)
from mesh_rdma._collectives import tree_coordinator
from mesh_rdma._operations.remote_operation import Report

LONG = 32 << 20
_TRIES_MAX = 10


@pytest.fixture(scope="module")
def pool() -> Iterator[list[KillableProcess]]:
    made: list[KillableProcess] = []
    yield made
    for killable in made:
        killable.stop()


@pytest.fixture
def killables(pool: list[KillableProcess]) -> Iterator[Callable[[int], list[KillableProcess]]]:
    """Return the requested number of live processes, which are reused."""

    def take(count: int) -> list[KillableProcess]:
        while len(pool) < count:
            pool.append(KillableProcess())
        return pool[:count]

    yield take
    for killable in list(pool):
        if killable.is_alive():
            killable.clear()
        else:
            killable.stop()
            pool.remove(killable)


@pytest.fixture
def on_hosts(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[RDMABuffer], str], None]:
    """Place buffers on machines with these names."""
    names: dict[RDMABuffer, bytes] = {}

    def put(buffers: list[RDMABuffer], machines: str) -> None:
        pairs = zip(buffers, machines, strict=True)
        names.update((buffer, machine.encode()) for buffer, machine in pairs)

    monkeypatch.setattr(tree_coordinator, "machine_of", names.__getitem__)
    return put


@pytest.fixture
def when_begun(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Call a function when the first report of a destination arrives."""
    on_report = tree_coordinator._Node.on_report
    awaited: dict[int, Callable[[], None]] = {}

    def hearing(node: tree_coordinator._Node, report: Report) -> Report:
        do = awaited.pop(node._place, None)
        if do is not None:
            do()
        return on_report(node, report)

    monkeypatch.setattr(tree_coordinator._Node, "on_report", hearing)
    return awaited.__setitem__


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(machines=st.text("abc", min_size=1, max_size=20), nbytes=st.integers(1, 3 << 20))
def test_all_destinations_get_the_bytes(
    killables: Callable[[int], list[KillableProcess]],
    on_hosts: Callable[[list[RDMABuffer], str], None],
    machines: str,
    nbytes: int,
) -> None:
    source, *owners = killables(4)
    src = source.register(nbytes, 5)
    dsts = [owners[place % 3].register(nbytes + place) for place in range(len(machines))]
    on_hosts([src, *dsts], "a" + machines)
    spread(src, dsts).get(30)
    wanted = pattern(5, nbytes)
    buffer = bytearray(nbytes)
    for dst in dsts:
        dst.read_into(buffer, length=nbytes).get()
        assert buffer == wanted
    for owner in (source, *owners):
        owner.clear()


def test_a_part_of_a_buffer_is_spread_to_parts_of_other_buffers(
    killables: Callable[[int], list[KillableProcess]],
) -> None:
    source, one, two = killables(3)
    src, dsts = source.register(1000, 3), [one.register(1000, 4), two.register(1000, 4)]
    spread(src[100:200], [dst[7:] for dst in dsts]).get(20)
    buffer = bytearray(1000)
    for dst in dsts:
        dst.read_into(buffer).get()
        assert buffer == pattern(4, 7) + pattern(3, 200)[100:] + pattern(4, 1000)[107:]


def test_a_destination_may_be_in_the_calling_process(
    killables: Callable[[int], list[KillableProcess]],
) -> None:
    (source,) = killables(1)
    ours = bytearray(1000)
    spread(source.register(1000, 3), [RDMABuffer(ours)]).get(20)
    assert ours == pattern(3, 1000)
    with pytest.raises(RDMABoundsError):
        spread(source.register(1000), [RDMABuffer(bytearray(999))])
    spread(source.register(1000), []).get()


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("machines", ["bcde", "bbcc"])
def test_destinations_behind_a_dead_process_continue_from_another_process(
    killables: Callable[[int], list[KillableProcess]],
    on_hosts: Callable[[list[RDMABuffer], str], None],
    when_begun: Callable[[int, Callable[[], None]], None],
    machines: str,
    victim: int,
) -> None:
    for killed_before in range(_TRIES_MAX):
        source, *owners = (one for one in killables(5 + killed_before) if one.is_alive())
        src, dsts = source.register(LONG, 5), [owner.register(LONG) for owner in owners]
        on_hosts([src, *dsts], "a" + machines)
        when_begun(victim, owners[victim].kill)
        error = spread(src, dsts).exception(30)
        killed = owners.pop(victim)
        killed.stop()
        assert [owner.has(5) for owner in owners] == [[True]] * 3
        if error is not None:
            break
        # On a busy machine, it may have finished before it was killed.
        for one in (source, *owners):
            one.clear()
    assert isinstance(error, RDMAIncomplete)
    ((place, cause),) = error.failures
    assert place == victim
    assert isinstance(cause, RDMAPeerDied)
    assert f"process {killed.pid} " in str(cause)


def test_a_destination_that_is_dead_at_the_start_is_reported(
    killables: Callable[[int], list[KillableProcess]],
    on_hosts: Callable[[list[RDMABuffer], str], None],
) -> None:
    source, *owners = killables(4)
    src, dsts = source.register(5000, 5), [owner.register(5000) for owner in owners]
    on_hosts([src, *dsts], "abbb")
    owners[0].stop()
    with pytest.raises(RDMAIncomplete) as caught:
        spread(src, dsts).get(30)
    assert [place for place, _ in caught.value.failures] == [0]
    assert owners[1].has(5) == owners[2].has(5) == [True]


def test_each_destination_completes_or_is_reported_if_the_source_dies(
    killables: Callable[[int], list[KillableProcess]],
    on_hosts: Callable[[list[RDMABuffer], str], None],
    when_begun: Callable[[int, Callable[[], None]], None],
) -> None:
    source, *owners = killables(4)
    src, dsts = source.register(LONG, 5), [owner.register(LONG) for owner in owners]
    on_hosts([src, *dsts], "abcd")
    when_begun(0, lambda: source.kill())
    error = spread(src, dsts).exception(30)
    failures = error.failures if isinstance(error, RDMAIncomplete) else ()
    assert [error for _, error in failures if not isinstance(error, RDMAPeerDied)] == []
    failed = {place for place, _ in failures}
    for place, owner in enumerate(owners):
        assert place in failed or owner.has(5) == [True]


def test_a_dropped_destination_fails_alone(
    killables: Callable[[int], list[KillableProcess]],
) -> None:
    source, *owners = killables(3)
    src, dsts = source.register(5000, 5), [owner.register(5000) for owner in owners]
    dsts[1].drop().get()
    with pytest.raises(RDMAIncomplete, match=r"1 of 2 transfers failed.*released"):
        spread(src, dsts).get(20)
    assert owners[0].has(5) == [True]


def test_a_stuck_destination_times_out_without_delaying_the_others(
    killables: Callable[[int], list[KillableProcess]],
) -> None:
    source, *owners = killables(4)
    src, dsts = source.register(5000, 5), [owner.register(5000) for owner in owners]
    spread(src, dsts).get(20)
    owners[1].freeze()
    # The timeout suffices for the others, even on a loaded machine.
    spreading = spread(src, dsts, timeout=1.0)
    with pytest.raises(RDMAIncomplete) as caught:
        spreading.get(20)
    ((place, error),) = caught.value.failures
    assert (place, type(error)) == (1, RDMATimeout)
    owners[1].stop()
    assert owners[0].has(5) == owners[2].has(5) == [True]


def test_nothing_is_written_after_a_copy_is_cancelled(
    killables: Callable[[int], list[KillableProcess]],
    on_hosts: Callable[[list[RDMABuffer], str], None],
    when_begun: Callable[[int, Callable[[], None]], None],
) -> None:
    source, *owners = killables(4)
    src, dsts = source.register(LONG, 5), [owner.register(LONG) for owner in owners]
    on_hosts([src, *dsts], "abcd")
    begun = threading.Event()
    when_begun(0, begun.set)
    spreading = spread(src, dsts)
    assert begun.wait(20)
    assert spreading.cancel()
    for dst in dsts:
        dst.write_from(pattern(6, LONG)).get()
    assert [owner.has(6) for owner in owners] == [[True]] * 3
    with pytest.raises(CallCancelled):
        spreading.get()


def test_owners_keep_no_state_of_completed_operations(
    killables: Callable[[int], list[KillableProcess]],
    on_hosts: Callable[[list[RDMABuffer], str], None],
) -> None:
    source, *owners = killables(4)
    src, dsts = source.register(5 << 20, 5), [owner.register(5 << 20) for owner in owners]
    on_hosts([src, *dsts], "abcd")
    before = [owner.counts() for owner in owners]
    for _ in range(3):
        spread(src, dsts).get(20)
    # Owners release the registrations after their last response.
    for owner, count in zip(owners, before, strict=True):
        owner.wait_for_counts(count)


def test_a_replica_can_be_viewed_on_its_machine(
    killables: Callable[[int], list[KillableProcess]],
) -> None:
    source, *owners = killables(3)
    src, near = source.register(LONG, 5), [owner.register(1) for owner in owners]
    replicas = replicate(src, near).get(20)
    assert len(replicas.buffers) == 1
    view = pickle.loads(pickle.dumps(replicas)).view()
    assert view.readonly
    assert view == pattern(5, LONG)
    replicas.refresh(source.register(LONG, 6)).get(20)
    assert view == pattern(6, LONG)


def test_replicas_are_placed_in_a_live_process(
    killables: Callable[[int], list[KillableProcess]],
) -> None:
    source, *owners = killables(3)
    src, near = source.register(100, 5), [owner.register(1) for owner in owners]
    owners[0].stop()
    assert replicate(src, near).get(20).view() == pattern(5, 100)
    owners[1].stop()
    with pytest.raises(RDMAPeerDied):
        replicate(src, near).get(20)


def test_a_view_fails_on_a_machine_without_a_replica(
    killables: Callable[[int], list[KillableProcess]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, owner = killables(2)
    replicas = replicate(source.register(100, 5), [owner.register(1)]).get(20)
    monkeypatch.setattr(_core, "machine", lambda: b"elsewhere")
    with pytest.raises(RDMATransportError, match="none of 1 copies is on this machine"):
        replicas.view()
    with pytest.raises(RDMABoundsError):
        replicate(source.register(100), [])
