"""The state of a host for each status of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_jobs import Phase
from mesh_jobs._kube.pod_status import host


def pod(phase: str = "Running", name: str = "w-0", **more: Any) -> dict[str, Any]:
    """Return a pod with a worker in the given state, and conditions that are true."""
    worker = {"name": "worker", "restartCount": more.get("restarts", 0)}
    worker["state"] = more.get("state", {"running": {"startedAt": more.get("at", AT)}})
    worker["lastState"] = more.get("last", {})
    true = more.get("true", ["PodScheduled", "Ready"])
    meta = {"name": name, "creationTimestamp": more.get("made", AT), **more.get("meta", {})}
    status = {
        "phase": phase,
        "podIP": more.get("ip", "10.0.0.7"),
        "containerStatuses": [worker],
        "conditions": [{"type": type, "status": "True"} for type in true],
        **more.get("status", {}),
    }
    return {"metadata": meta, "spec": {"nodeName": "n1"}, "status": status}


AT = "2026-01-02T03:04:05Z"
LATER = "2026-01-02T03:04:06Z"
GOING = {"meta": {"deletionTimestamp": AT}}
OOM = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
WRONG = {"terminated": {"reason": "Error", "exitCode": 1, "startedAt": AT, "finishedAt": LATER}}
LATE = {"terminated": {**WRONG["terminated"], "finishedAt": "2026-01-02T04:04:05Z"}}
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
CRASH = {"waiting": {"reason": "CrashLoopBackOff"}}
UNPLACED = [
    {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/4 nodes are available",
    }
]
DISRUPTED = [
    {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "a more urgent pod came",
    }
]

CASES = [
    ([pod()], Phase.RUNNING, ""),
    ([], Phase.PENDING, "it has no pod yet"),
    ([pod(true=[])], Phase.PENDING, "pod w-0 runs on n1 but is not ready"),
    ([pod("Pending", true=[], state={})], Phase.PENDING, "pod w-0 is starting on n1"),
    (
        [pod("Pending", status={"conditions": UNPLACED, "containerStatuses": None})],
        Phase.PENDING,
        "pod w-0: Unschedulable: 0/4 nodes are available",
    ),
    (
        [pod("Pending", true=[], state=PULL)],
        Phase.ENDED,
        "pod w-0: ImagePullBackOff: no such image",
    ),
    (
        [pod("Pending", true=[], state={"waiting": {"reason": "ErrImagePull"}})],
        Phase.PENDING,
        "pod w-0: ErrImagePull",
    ),
    (
        [pod("Pending", true=[], state={"waiting": {"reason": "ContainerCreating"}})],
        Phase.PENDING,
        "pod w-0 is starting on n1",
    ),
    (
        [pod(true=[], state=CRASH, last=OOM)],
        Phase.ENDED,
        "pod w-0: CrashLoopBackOff (OOMKilled, exit status 137)",
    ),
    ([pod("Failed", true=[], state=OOM)], Phase.PENDING, "pod w-0: OOMKilled, exit status 137"),
    ([pod("Failed", true=[], state=WRONG)], Phase.ENDED, "pod w-0: Error, exit status 1"),
    ([pod("Failed", true=[], state=LATE)], Phase.PENDING, "pod w-0: Error, exit status 1"),
    ([pod(**GOING)], Phase.PENDING, "pod w-0 is terminating"),
    (
        [pod("Failed", true=[], status={"reason": "Evicted", "message": "low on memory"})],
        Phase.PENDING,
        "pod w-0: Evicted: low on memory",
    ),
    (
        [pod("Failed", true=[], state=OOM, status={"conditions": DISRUPTED})],
        Phase.PENDING,
        "pod w-0: PreemptionByScheduler: a more urgent pod came",
    ),
]


@pytest.mark.parametrize(("pods", "state", "reason"), CASES)
def test_a_host_has_the_state_and_the_reason_of_its_pods(
    pods: list[dict[str, Any]], state: Phase, reason: str
) -> None:
    found = host("m", 0, pods, 26600, "", is_replaced=True)
    assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize(
    ("address", "told"),
    [("10.0.0.7", "tcp://10.0.0.7:26600"), ("fd00::7", "tcp://[fd00::7]:26600")],
)
def test_the_address_of_a_host_is_its_pod_address(address: str, told: str) -> None:
    assert host("m", 0, [pod(ip=address)], 26600, "", is_replaced=True).address == told


def test_a_running_pod_takes_precedence_over_other_pods() -> None:
    ended = pod("Failed", "old", state=OOM, made=LATER)
    going = pod(name="going", made=LATER, **GOING)
    found = host("m", 0, [ended, going, pod(ip="10.0.0.9")], 1, "", is_replaced=True)
    assert found.address == "tcp://10.0.0.9:1"


@pytest.mark.parametrize("later", [{"at": LATER}, {"restarts": 1}])
def test_a_later_worker_has_a_larger_epoch(later: dict[str, Any]) -> None:
    one = host("m", 0, [pod()], 1, "", is_replaced=True)
    other = host("m", 0, [pod(**later)], 1, "", is_replaced=True)
    assert other.epoch > one.epoch


def test_a_host_ends_when_its_pod_is_not_replaced() -> None:
    lost = host("m", 0, [pod("Failed", true=[], state=OOM)], 1, "", is_replaced=False)
    gone = host("m", 0, [], 1, "", is_replaced=False)
    assert (lost.state, lost.reason) == (Phase.ENDED, "pod w-0: OOMKilled, exit status 137")
    assert (gone.state, gone.reason) == (Phase.ENDED, "its pod was deleted")


@pytest.mark.parametrize(
    ("attach_to", "told"),
    [
        (None, None),
        ("tcp://127.0.0.1:7000", "grpcs://127.0.0.1:7001"),
        ("tcp://[fd00::7]:7000", "grpcs://[fd00::7]:7001"),
    ],
)
def test_the_control_gateway_is_on_the_port_after_the_attach_to_port(
    attach_to: str | None, told: str | None
) -> None:
    pytest.importorskip("kubernetes")
    from mesh_jobs._kube.backend import KubernetesBackend

    options = {"namespace": "n", "workload": "job", "attach_to": attach_to}
    assert KubernetesBackend(options).control_gateway({}) == told
