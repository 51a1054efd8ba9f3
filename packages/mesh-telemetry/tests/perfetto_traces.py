"""Traces as viewers show them, decoded with Perfetto's own schema."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@dataclass
class Shown:
    """A slice or an instant, with its enclosing slice."""

    name: str
    category: str
    track: str
    process: str
    begin_ns: int
    end_ns: int | None
    is_moment: bool
    arguments: dict[str, Any]
    flows: list[int]
    parent: Shown | None = None


@dataclass
class Trace:
    """The content of a trace."""

    shown: list[Shown] = field(default_factory=list)
    counters: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def named(self, name: str) -> list[Shown]:
        """Return the slices and instants with this name."""
        return [one for one in self.shown if one.name == name]


def read_trace(path: Path) -> Trace:
    """Read a trace; fail if its slices do not nest or a name is unknown."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    packets = trace_pb2.Trace.FromString(content).packet
    names: dict[str, dict[int, str]] = {"category": {}, "name": {}, "argument": {}}
    tracks: dict[int, tuple[str, str]] = {0: ("", "")}
    processes: dict[int, str] = {}
    events = []
    for packet in packets:
        assert packet.trusted_packet_sequence_id == 1
        interned = packet.interned_data
        for kind, entries in (
            ("category", interned.event_categories),
            ("name", interned.event_names),
            ("argument", interned.debug_annotation_names),
        ):
            names[kind] |= {entry.iid: entry.name for entry in entries}
        if packet.HasField("track_descriptor"):
            told = packet.track_descriptor
            if told.HasField("process"):
                processes[told.process.pid] = told.process.process_name
                tracks[told.uuid] = (told.process.process_name, "")
            elif told.HasField("thread"):
                tracks[told.uuid] = (processes[told.thread.pid], told.thread.thread_name)
            else:
                tracks[told.uuid] = (tracks[told.parent_uuid][0], told.name)
        if packet.HasField("track_event"):
            events.append((packet.timestamp, packet.track_event))
    # Viewers also sort by time, and keep the order of events with equal times.
    events.sort(key=lambda event: event[0])
    trace, stacks = Trace(), defaultdict(list)
    for at_ns, event in events:
        process, track = tracks[event.track_uuid]
        stack = stacks[event.track_uuid]
        said = {
            names["argument"][one.name_iid]: getattr(one, one.WhichOneof("value"))
            for one in event.debug_annotations
        }
        if event.type == event.TYPE_COUNTER:
            trace.counters[track].append(getattr(event, event.WhichOneof("counter_value_field")))
        elif event.type == event.TYPE_SLICE_END:
            ended = stack.pop()
            ended.end_ns = at_ns
            ended.arguments |= said
        else:
            flows = [*event.flow_ids, *event.terminating_flow_ids]
            is_moment = event.type == event.TYPE_INSTANT
            name = names["name"][event.name_iid] if event.name_iid else event.name
            parent = stack[-1] if stack else None
            category = names["category"][event.category_iids[0]]
            one = Shown(name, category, track, process, at_ns, None, is_moment, said, flows, parent)
            trace.shown.append(one)
            if not is_moment:
                stack.append(one)
    return trace
