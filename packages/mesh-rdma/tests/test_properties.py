"""Concurrent random reads and writes of one buffer over all transports, compared with a model."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from fork_server import ForkServer, fill_byte
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh_rdma import RDMAAction, RDMABuffer
from mesh_rdma._kit.harness import pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

LEN = 64 << 20
TRANSPORTS = ("arena", "attach", "unix", "tcp")
# Sizes at which transfers are split; sizes and offsets are chosen on both sides of them.
SEAMS = (0, 4096, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, LEN)
# The maximum number of concurrent transfers.
STEPS_MAX = 6


@dataclass(frozen=True)
class Step:
    """One transfer of a range over a transport."""

    verb: str
    transport: str
    start: int
    stop: int
    seed: int


class Model:
    """A buffer in another process, and its expected content."""

    def __init__(self, buffer: RDMABuffer) -> None:
        self.buffers = {transport: buffer.via(transport) for transport in TRANSPORTS}
        self.expected = bytearray(bytes([fill_byte(0)]) * LEN)

    def run(self, step: Step) -> None:
        """Execute one step concurrently with others; a read must return the expected content."""
        buffer = self.buffers[step.transport]
        length = step.stop - step.start
        if step.verb == "write":
            source = pattern(step.seed, length)
            buffer.write_from(source, offset=step.start).get()
            self.expected[step.start : step.stop] = source
        elif step.verb == "read":
            here = bytearray(length)
            buffer.slice(step.start, length).read_into(here).get()
            assert here == self.expected[step.start : step.stop]
        else:
            # The range is read in two halves, as a batch.
            half = length // 2
            first, second = bytearray(half), bytearray(length - half)
            part = buffer[step.start : step.stop]
            batch = RDMAAction().read_remote(first, part[:half]).read_remote(second, part[half:])
            batch.submit().get()
            assert first + second == self.expected[step.start : step.stop]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with ForkServer() as fork_server:
        owner = fork_server.start("own", 0, True, LEN)
        yield Model(owner.receive())
        owner.channel.close()


def places() -> st.SearchStrategy[int]:
    """Offsets: anywhere, in the first page, and near the seams."""
    near = st.tuples(st.sampled_from(SEAMS), st.integers(-3, 3)).map(sum)
    anywhere = st.one_of(st.integers(0, 4096), near, st.integers(0, LEN))
    return anywhere.map(lambda place: min(max(place, 0), LEN))


@st.composite
def steps_side_by_side(draw: st.DrawFn) -> list[Step]:
    """Transfers whose ranges do not overlap if one of them writes."""
    cuts = sorted(draw(st.lists(places(), min_size=2, max_size=STEPS_MAX + 1)))
    steps = []
    for start, stop in itertools.pairwise(cuts):
        verb = draw(st.sampled_from(["read", "write", "write", "batch"]))
        transport = draw(st.sampled_from(TRANSPORTS))
        steps.append(Step(verb, transport, start, stop, draw(st.integers(0, 99))))
        if verb != "write":
            # The same range is read over another transport concurrently.
            steps.append(Step("read", draw(st.sampled_from(TRANSPORTS)), start, stop, 0))
    return steps


@settings(
    max_examples=30,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rounds=st.lists(steps_side_by_side(), min_size=1, max_size=2))
def test_bytes_equal_those_of_the_model(model: Model, rounds: list[list[Step]]) -> None:
    with ThreadPoolExecutor(2 * STEPS_MAX) as pool:
        for steps in rounds:
            list(pool.map(model.run, steps))


def test_the_final_content_equals_the_model(model: Model) -> None:
    here = bytearray(LEN)
    model.buffers["arena"].read_into(here).get()
    assert here == model.expected
