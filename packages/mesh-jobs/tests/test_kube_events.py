"""Conversion of cluster events on pods to events of a job."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_jobs._kube.events import Place, events_of

AT = "2026-01-02T03:04:05Z"
AT_S = 1767323045.0

#: The workload of the mesh `ones`; only its pod of rank 1 exists.
NAMES: dict[str, str | None] = {"job-ones-0-1f2e3d4c": "ones"}
PLACES: dict[str, Place] = {"job-ones-0-1f2e3d4c-1-abcde": ("ones", 1)}


def event(name: str, reason: str, message: str = "why", **more: Any) -> dict[str, Any]:
    told = {"involvedObject": {"kind": "Pod", "name": name}, "reason": reason, "message": message}
    return {**told, "metadata": {}, "lastTimestamp": AT, **more}


def pod(**status: Any) -> dict[str, Any]:
    name = next(iter(PLACES))
    return {"metadata": {"name": name, "creationTimestamp": AT}, "status": status}


def ended(reason: str) -> dict[str, Any]:
    state = {"terminated": {"reason": reason, "exitCode": 137, "finishedAt": AT}}
    return {"name": "worker", "state": state}


CASES = [
    (event("job-ones-0-1f2e3d4c-1-abcde", "Preempted"), ("Preempted", "ones", 1)),
    # This pod was deleted, so its rank is derived from its name.
    (event("job-ones-0-1f2e3d4c-12-fghij", "Evicted"), ("Evicted", "ones", 12)),
    (event("job-ones-0-1f2e3d4c-3", "Killing"), ("Killing", "ones", 3)),
    (event("job-ones-0-1f2e3d4c", "SuccessfulCreate"), ("SuccessfulCreate", "ones", None)),
]


@pytest.mark.parametrize(("told", "expected"), CASES)
def test_an_event_is_assigned_to_its_host(told: dict[str, Any], expected: tuple[Any, ...]) -> None:
    (found,) = events_of(NAMES, PLACES, [told], [])
    assert (found.kind, found.mesh, found.rank) == expected
    assert found.at == AT_S


@pytest.mark.parametrize("name", ["job-ones-0-1f2e3d4d-0-abcde", "job-ones-0-1f2e3d4cc", "other"])
def test_events_of_other_pods_are_ignored(name: str) -> None:
    assert events_of(NAMES, PLACES, [event(name, "Evicted")], []) == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ({"containerStatuses": [ended("OOMKilled")]}, "OOMKilled"),
        ({"reason": "Evicted", "message": "low on memory"}, "Evicted"),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                ]
            },
            "FailedScheduling",
        ),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "Preempted"}]},
            "Preempted",
        ),
    ],
)
def test_the_status_of_a_pod_is_reported_as_one_event(status: Any, kind: str) -> None:
    (found,) = events_of(NAMES, PLACES, [], [pod(**status)])
    assert (found.kind, found.mesh, found.rank) == (kind, "ones", 1)
    same = event("job-ones-0-1f2e3d4c-1-abcde", kind)
    assert len(events_of(NAMES, PLACES, [same], [pod(**status)])) == 1


def test_events_are_in_order_and_contain_their_count() -> None:
    later = "2026-01-02T03:04:06.000000Z"
    often = event("job-ones-0-1f2e3d4c-3", "BackOff", count=7, lastTimestamp=None, eventTime=later)
    found = events_of(NAMES, PLACES, [often, CASES[0][0]], [])
    assert [one.kind for one in found] == ["Preempted", "BackOff"]
    assert found[1].text == "pod job-ones-0-1f2e3d4c-3: why (7 times)"
