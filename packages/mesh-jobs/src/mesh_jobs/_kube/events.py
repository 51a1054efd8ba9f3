"""Conversion of the events that a cluster reports for pods and workloads to events of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from mesh_jobs._backend.report import JobEvent
from mesh_jobs._kube.pod_status import worker_of

__all__ = ["Place", "events_of"]

_NUMBER = re.compile(r"-(\d+)(?=-|$)")

Object = Mapping[str, Any]
#: A mesh and a rank in it; each is None if it is unknown.
Place = tuple[str | None, int | None]


def events_of(
    names: Mapping[str, str | None],
    places: Mapping[str, Place],
    events: Sequence[Object],
    pods: Sequence[Object],
) -> list[JobEvent]:
    """Return the events of a job.

    Args:
        names: The name prefixes of its objects, with the mesh of each.
        places: The mesh and the rank of each existing pod, by name.
        events: All events in the namespace. The cluster deletes them after a while, by default
            after one hour, and does not report everything as an event.
        pods: The existing pods, whose status contains more information on their termination.
    """
    found: list[JobEvent] = []
    reported: set[tuple[str, str]] = set()
    for event in events:
        name = str((event.get("involvedObject") or {}).get("name") or "")
        if name not in places and not any(_begins(name, prefix) for prefix in names):
            continue
        mesh, rank = places.get(name) or _place(name, names)
        kind = str(event.get("reason") or event.get("type") or "Event")
        reported.add((name, kind))
        text = f"{(event.get('involvedObject') or {}).get('kind', '')} {name}".strip().lower()
        times = int(event.get("count") or (event.get("series") or {}).get("count") or 1)
        often = f" ({times} times)" if times > 1 else ""
        message = str(event.get("message") or "")
        found.append(JobEvent(_when(event), kind, f"{text}: {message}{often}", mesh, rank))
    for pod in pods:
        name = str(pod["metadata"]["name"])
        mesh, rank = places.get(name, (None, None))
        for at, kind, message in _status_events(pod):
            if (name, kind) not in reported:
                found.append(JobEvent(_seconds(at), kind, f"pod {name}: {message}", mesh, rank))
    return sorted(found, key=lambda event: event.at)


def _begins(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}-")


def _place(name: str, names: Mapping[str, str | None]) -> Place:
    """Return the mesh and the rank of a deleted pod, derived from its name."""
    for prefix, mesh in names.items():
        if mesh is not None and _begins(name, prefix):
            number = _NUMBER.match(name, len(prefix))
            return mesh, int(number[1]) if number else None
    return None, None


def _when(event: Object) -> float:
    series = event.get("series") or {}
    meta = event.get("metadata") or {}
    for time in (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        meta.get("creationTimestamp"),
    ):
        if time:
            return _seconds(time)
    return 0.0


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def _status_events(pod: Object) -> Iterator[tuple[str, str, str]]:
    """Yield the events in the status of a pod: time, reason and message."""
    status, made = pod["status"], str(pod["metadata"]["creationTimestamp"])
    for one in status.get("conditions") or []:
        at = str(one.get("lastTransitionTime") or made)
        if one["type"] == "PodScheduled" and one["status"] == "False":
            yield at, "FailedScheduling", f"{one.get('reason', '')}: {one.get('message', '')}"
        if one["type"] == "DisruptionTarget" and one["status"] == "True":
            yield at, str(one.get("reason") or "Disrupted"), str(one.get("message") or "")
    worker = worker_of(pod)
    for state in (worker.get("lastState") or {}, worker.get("state") or {}):
        ended = state.get("terminated")
        if ended:
            at = str(ended.get("finishedAt") or made)
            reason = str(ended.get("reason") or "Error")
            yield at, reason, f"its worker ended with exit status {ended.get('exitCode')}"
    if status.get("reason"):
        yield made, str(status["reason"]), str(status.get("message") or "")
