"""The events of simulated processes as a timeline for trace viewers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mesh_tensor._instructions.call_site import line_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

    from mesh_tensor._simulator.event_log import Event, EventLog
    from mesh_tensor._simulator.rank_groups import RankGroups

__all__ = ["write_trace"]


def write_trace(
    path: str | PathLike[str], rank_groups: RankGroups, events: EventLog, ranks: Sequence[int]
) -> None:
    """Write the events of some processes in the format of Chrome's trace viewer and Perfetto."""
    rows = [row for rank in ranks for row in _rows(rank_groups, events, rank)]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": rows, "displayTimeUnit": "ms"}, file)


def _rows(rank_groups: RankGroups, events: EventLog, rank: int) -> Iterator[dict[str, Any]]:
    rank_group = rank_groups.of(rank)
    alike = len(rank_group.ranks)
    name = f"rank {rank}" + (f", and {alike - 1} like it" if alike > 1 else "")
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
    tracks: dict[tuple[str, int], int] = {}
    begin = 0
    for number, end in (*rank_group.lineage, (rank_group.number, len(events.events))):
        for event in events.events[begin:end]:
            if event.rank_group != number:
                continue
            if event.device_stream not in tracks:
                tracks[event.device_stream] = len(tracks)
                yield _track_name(rank, tracks[event.device_stream], event.device_stream)
            yield from _shown(event, rank, tracks[event.device_stream])
        begin = end


def _track_name(rank: int, track: int, key: tuple[str, int]) -> dict[str, Any]:
    name = key[0] + (f", stream {key[1]}" if key[1] else "")
    return {"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}}


def _shown(event: Event, rank: int, track: int) -> Iterator[dict[str, Any]]:
    where = ""
    if event.call_site:
        code, instruction = event.call_site[:2]
        where = f"{code.co_filename}:{line_of(code, instruction)}"
    yield {
        "ph": "X",
        "name": event.name,
        "cat": "exchange" if event.is_exchange else "compute",
        "pid": rank,
        "tid": track,
        "ts": event.start_s * 1e6,
        "dur": event.cost_s * 1e6,
        "args": {"line": where},
    }
    yield {
        "ph": "C",
        "name": f"memory of {event.device_stream[0]}",
        "pid": rank,
        "ts": event.start_s * 1e6,
        "args": {"bytes": event.live_bytes},
    }
