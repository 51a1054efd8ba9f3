"""Gauges of the current processes and actors of a host."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from mesh_telemetry._events.process_socket import ACTIVITY
from mesh_telemetry._prometheus.family import Family, Sample
from mesh_telemetry._prometheus.heads import (
    ACTORS,
    MEMORY,
    PROCESSES,
    PROCESSES_UNRESPONSIVE,
    QUEUE_LENGTH,
)
from mesh_telemetry._rows.activity_rows import node_rows
from mesh_telemetry._rows.live_tables import live_batches, request_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mesh_telemetry._events.proc_folder import ProcFolder
    from mesh_telemetry._prometheus.family import FamilyHead, Labels

__all__ = ["LiveFamilies", "live_families", "proc_rows"]

_REPLY_TIMEOUT_S = 2.0


class LiveFamilies(NamedTuple):
    """The gauges of a host."""

    families: list[Family]
    omitted: int
    """The number of series that were left out because of the limit."""


def live_families(folders: Sequence[ProcFolder], series_max: int) -> LiveFamilies:
    """Query all processes of a host; takes up to two seconds if one does not respond.

    Args:
        folders: The processes of the host.
        series_max: The maximum number of series of each family.
    """
    states: dict[Labels, float] = defaultdict(int)
    memory: dict[Labels, float] = defaultdict(int)
    for row in proc_rows(folders):
        mesh = ("mesh", row["mesh"])
        states[mesh, ("state", row["state"])] += 1
        if row["rss_bytes"] is not None:
            memory[mesh, ("rank", str(row["rank"]))] += row["rss_bytes"]
    actors: dict[Labels, float] = defaultdict(int)
    queues: dict[Labels, float] = defaultdict(int)
    replies = request_state(folders, ACTIVITY, _REPLY_TIMEOUT_S)
    now_us = time.time_ns() // 1000
    for folder, reply in replies:
        mesh = ("mesh", folder.identity.mesh_name)
        for row in node_rows(reply, folder, now_us):
            actor = ("actor", row["actor"])
            state = ("state", row["actor_status"])
            actors[mesh, actor, ("class", row["actor_type"]), state] += 1
            queues[mesh, ("rank", str(row["rank"])), actor] += row["queue_depth"]
    alive = sum(folder.is_alive for folder in folders)
    values: dict[FamilyHead, Mapping[Labels, float]] = {
        PROCESSES: states,
        MEMORY: memory,
        ACTORS: actors,
        QUEUE_LENGTH: queues,
        PROCESSES_UNRESPONSIVE: {(): alive - len(replies)},
    }
    families, omitted = [], 0
    for head, series in values.items():
        samples = [Sample(*item) for item in list(series.items())[:series_max]]
        omitted += len(series) - len(samples)
        families.append(Family(head, samples))
    return LiveFamilies(families, omitted)


def proc_rows(folders: Sequence[ProcFolder]) -> list[dict[str, Any]]:
    """Return the row of the table `procs` of each process, in the same order."""
    return [row for batch in live_batches("procs", folders) for row in batch.to_pylist()]
