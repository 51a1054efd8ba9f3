"""Slices of random length are drawn such that they nest and none is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from perfetto_traces import read_trace

from mesh_telemetry._profile.clock_offsets import ClockOffset, clock_offsets, least_delays
from mesh_telemetry._profile.perfetto import PerfettoWriter
from mesh_telemetry._profile.slice_tracks import Slice, SliceTracks


@pytest.mark.parametrize("seed", range(20))
def test_random_slices_nest_and_none_is_lost(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    content = bytearray()
    writer = PerfettoWriter(content.extend)
    writer.process(1, "p")
    made: dict[str, tuple[int, int | None]] = {}
    tracks = SliceTracks(
        writer, lambda at: writer.thread(1, 10 + at, f"track {at}"), has_messages=seed % 2 == 0
    )
    known: list[Slice] = []
    at_ns = 0
    for number in range(300):
        at_ns += chance.choice([0, 0, 1, 5])
        late = chance.random() < 0.1
        end_ns = None if late else at_ns + chance.choice([0, 1, 3, 20, 100])
        is_message = chance.random() < 0.4
        one = Slice(f"slice {number}", "test", at_ns, end_ns, is_message=is_message)
        parent = chance.choice([None, *known[-5:]])
        if is_message:
            tracks.add_message(one, {}, None)
        else:
            tracks.add_span(one, parent, {})
        known.append(one)
        if chance.random() < 0.1:
            # The end of an interval: the next one contains the ends of some slices.
            at_ns = max([at_ns, *(one.end_ns for one in known if one.end_ns is not None)])
            tracks.settle(at_ns)
            for one in known:
                if one.end_ns is None and chance.random() < 0.5:
                    one.end(at_ns + chance.choice([0, 2, 10]))
    for one in known:
        if one.end_ns is None:
            one.end(at_ns + 1000)
        made[one.name] = (one.begin_ns, one.end_ns)
    tracks.settle(at_ns + 2000)
    path = tmp_path / "trace"
    path.write_bytes(content)
    shown = {one.name: one for one in read_trace(path).shown}
    assert {name: (one.begin_ns, one.end_ns) for name, one in shown.items()} == made


def test_names_and_values_are_written_unchanged(tmp_path: Path) -> None:
    content = bytearray()
    writer = PerfettoWriter(content.extend)
    writer.begin(10**18)
    writer.process(4, "p")
    track = writer.thread(4, 5, "t")
    said = {
        "true": True,
        "less": -5,
        "whole": 1 << 62,
        "large": 1 << 64,
        "real": 0.25,
        "text": "é\ud800",
    }
    for _ in range(2):
        writer.instant(track, 10**18 + 1, "é", "c", said, (1 << 64) - 1)
    counter = writer.counter(1, "level", "1")
    writer.count(counter, 10**18, -3)
    writer.count(counter, 10**18 + 1, 0.5)
    path = tmp_path / "trace"
    path.write_bytes(content)
    trace = read_trace(path)
    assert [one.name for one in trace.shown] == ["é", "é"]
    assert trace.shown[1].arguments == said | {"large": str(1 << 64), "text": "é?"}
    assert trace.shown[1].flows == [(1 << 64) - 1]
    assert trace.counters["level"] == [-3, 0.5]


def test_clocks_are_corrected_only_beyond_the_round_trip_delay() -> None:
    pairs = [(0, 1, 5_100), (0, 1, 9_000), (1, 0, -4_900), (1, 2, 60), (2, 1, 40), (3, 0, 5)]
    assert clock_offsets(least_delays(pairs), first=0) == {
        1: ClockOffset(5_000, 200),
        # Its measurements are consistent with the offset of host 1, so that offset applies.
        2: ClockOffset(5_000, 100),
    }
