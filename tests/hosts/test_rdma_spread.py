"""One buffer is spread to many hosts: each receives the bytes once, and live hosts get all."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.hosts.cluster import Program, many
from tests.hosts.world import Host, World

MIB = 1 << 20

_pause = threading.Event()

#: Exceeds the duration of everything that does happen, also on a busy machine.
LIMIT_S = 30.0


@pytest.fixture
def programs(world: World) -> Iterator[list[list[Program]]]:
    """Two programs on each host."""
    with ExitStack() as stack:
        yield [[stack.enter_context(Program(host)) for _ in range(2)] for host in world.hosts]


def _digest(nbytes: int) -> str:
    return hashlib.sha256(many.content(nbytes)).hexdigest()


def _wait_for_bytes(host: Host, count: int) -> None:
    """Wait until a host has received `count` more bytes."""
    before, until = host.traffic().bytes_in, time.monotonic() + LIMIT_S
    while host.traffic().bytes_in < before + count:
        assert time.monotonic() < until, "nothing comes"
        _pause.wait(0.01)


@pytest.mark.hosts(4)
def test_each_host_is_sent_the_bytes_once(world: World, programs: list[list[Program]]) -> None:
    nbytes = 16 * MIB
    asker = programs[0][0]
    source = asker.do(many.offer_buffer, nbytes, True)
    others = [program for host in programs[1:] for program in host]
    places = [program.do(many.offer_buffer, nbytes) for program in others]
    before = [host.traffic() for host in world.hosts]
    assert asker.do(many.spread_to, source, places) == []
    carried = [host.traffic() - earlier for host, earlier in zip(world.hosts, before, strict=True)]
    assert [program.do(many.digest) for program in others] == [_digest(nbytes)] * len(others)
    for one in carried[1:]:
        assert nbytes < one.bytes_in < 1.5 * nbytes
    # A buffer of this size is sent along a chain: no host sends it twice.
    assert max(one.bytes_out for one in carried) < 1.5 * nbytes


@pytest.mark.hosts(4)
def test_hosts_behind_a_lost_host_get_the_bytes_from_another_host(
    world: World, programs: list[list[Program]]
) -> None:
    nbytes = 32 * MIB
    asker = programs[0][0]
    source = asker.do(many.offer_buffer, nbytes, True)
    others = [program for host in programs[1:] for program in host]
    places = [program.do(many.offer_buffer, nbytes) for program in others]
    # So slow that the power is cut long before the end, also on a busy machine.
    with world.faults.bandwidth(world.hosts[1], 40_000_000):
        spreading = asker.begin(many.spread_to, source, places)
        _wait_for_bytes(world.hosts[1], nbytes // 16)
        assert not spreading.done()
        with world.faults.power_cut(world.hosts[1]):
            failures = spreading.result(60)
    assert failures == [(0, "RDMAPeerDied"), (1, "RDMAPeerDied")]
    assert [program.do(many.digest) for program in others[2:]] == [_digest(nbytes)] * 4


@pytest.mark.hosts(3)
def test_all_processes_of_a_host_share_one_copy(programs: list[list[Program]]) -> None:
    nbytes = 4 * MIB
    everybody = [program for host in programs for program in host]
    source = everybody[0].do(many.offer_buffer, nbytes, True)
    near = [program.do(many.offer_buffer, 1) for program in everybody]
    replicas, count = everybody[0].do(many.replicate_near, source, near)
    assert count == 3
    seen = [program.do(many.view_digest, replicas) for program in everybody]
    assert seen == [_digest(nbytes)] * 6


@pytest.mark.hosts(3)
def test_an_array_is_resharded_on_other_hosts(programs: list[list[Program]]) -> None:
    side, asker = 1024, programs[0][0]
    part = side * side // 4
    trainers, generators = [*programs[0], *programs[1]], programs[2]
    sources = [program.do(many.offer_buffer, part, True) for program in trainers]
    places = [program.do(many.offer_buffer, 2 * part) for program in generators]
    asker.do(many.columns_to_rows, sources, places, side)
    column = many.content(part)
    width = side // 4
    wanted = b"".join(column[row * width : (row + 1) * width] * 4 for row in range(side))
    halves = [wanted[: 2 * part], wanted[2 * part :]]
    digests = [hashlib.sha256(half).hexdigest() for half in halves]
    assert [program.do(many.digest) for program in generators] == digests
