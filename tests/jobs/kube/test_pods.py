"""Pods run, become ready, fail and end as in a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.kube.cluster import Cluster, encoded, eventually
from tests.jobs.kube.image import MISSING
from tests.jobs.kube.pods import (
    ADDRESS,
    SERVE,
    TCP_PROBE,
    WAIT,
    indexed_job,
    pod,
    stateful_set,
)


def _is_ready(one: Any) -> bool:
    conditions = {each.type: each.status for each in one.status.conditions or []}
    return conditions.get("Ready") == "True"


def _state(cluster: Cluster, namespace: str, name: str) -> Any:
    """Return the state of the only container, or None before the first state is reported."""
    statuses = cluster.pod(namespace, name).status.container_statuses
    return statuses[0].state if statuses else None


def _waits_for(cluster: Cluster, namespace: str, name: str, *reasons: str) -> Any:
    def look() -> bool:
        state = _state(cluster, namespace, name)
        return bool(state and state.waiting and state.waiting.reason in reasons)

    return eventually(look)


def _ended(cluster: Cluster, namespace: str, name: str) -> Any:
    def look() -> Any:
        state = _state(cluster, namespace, name)
        return state and state.terminated

    return eventually(look)


def test_a_pod_is_ready_when_its_port_is_open(cluster: Cluster, namespace: str) -> None:
    body = pod("a", SERVE, env=[ADDRESS], readinessProbe=TCP_PROBE)
    cluster.core.create_namespaced_pod(namespace, body)
    eventually(lambda: _is_ready(cluster.pod(namespace, "a")))
    assert "serving" in cluster.core.read_namespaced_pod_log("a", namespace)
    cluster.core.delete_namespaced_pod("a", namespace)
    eventually(lambda: not cluster.pods(namespace))


#: A health service that reports SERVING. It needs grpcio, because `http.server` has no HTTP/2.
HEALTHY = """
import grpc, os, signal
from concurrent import futures
class Health(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method == "/grpc.health.v1.Health/Check":
            return grpc.unary_unary_rpc_method_handler(lambda asked, context: b"\\x08\\x01")
server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Health()])
server.add_insecure_port(os.environ["POD_IP"] + ":26600")
server.start()
signal.pause()
"""


def test_a_pod_is_ready_when_its_health_service_reports_serving(
    stand_in: Cluster, namespace: str
) -> None:
    pytest.importorskip("grpc")
    probe = {"grpc": {"port": 26600}, "periodSeconds": 1}
    stand_in.core.create_namespaced_pod(
        namespace, pod("a", HEALTHY, env=[ADDRESS], readinessProbe=probe)
    )
    eventually(lambda: _is_ready(stand_in.pod(namespace, "a")))


def test_a_container_is_restarted_when_its_liveness_probe_fails(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    command = ["test", "-e", str(tmp_path / "lives")]
    (tmp_path / "lives").touch()
    probe = {"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 1}
    body = pod("a", WAIT, livenessProbe=probe)
    body["spec"]["restartPolicy"] = "Always"
    cluster.core.create_namespaced_pod(namespace, body)
    eventually(lambda: cluster.pod(namespace, "a").status.phase == "Running")
    (tmp_path / "lives").unlink()

    def restarts() -> int:
        (status,) = cluster.pod(namespace, "a").status.container_statuses
        return int(status.restart_count)

    assert eventually(restarts) >= 1


def test_a_pod_is_ready_when_its_probe_command_succeeds(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    command = ["test", "-e", str(tmp_path / "ready")]
    probe = {"exec": {"command": command}, "periodSeconds": 1}
    cluster.core.create_namespaced_pod(namespace, pod("a", WAIT, readinessProbe=probe))
    eventually(lambda: cluster.pod(namespace, "a").status.phase == "Running")
    assert not _is_ready(cluster.pod(namespace, "a"))
    (tmp_path / "ready").touch()
    eventually(lambda: _is_ready(cluster.pod(namespace, "a")))


def test_a_container_gets_fields_and_secrets_as_environment_variables(
    cluster: Cluster, namespace: str
) -> None:
    secret = {"metadata": {"name": "s"}, "data": {"word": encoded("rosebud")}}
    cluster.core.create_namespaced_secret(namespace, secret)
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "word"}}},
        {"name": "BOTH", "value": "$(NAME)-$(WORD)"},
    ]
    body = pod("a", "import os; print(os.environ['BOTH'])", env=env)
    cluster.core.create_namespaced_pod(namespace, body)
    assert _ended(cluster, namespace, "a").exit_code == 0
    assert cluster.core.read_namespaced_pod_log("a", namespace) == "a-rosebud\n"


def test_a_secret_is_mounted_as_a_folder_of_files(stand_in: Cluster, namespace: str) -> None:
    secret = {"metadata": {"name": "s"}, "data": {"word": encoded("rosebud")}}
    stand_in.core.create_namespaced_secret(namespace, secret)
    volume = {"name": "v", "secret": {"secretName": "s", "defaultMode": 0o400}}
    body = pod(
        "a",
        "import os; p = os.environ['PLACE']; print(open(p).read(), oct(os.stat(p).st_mode))",
        env=[{"name": "PLACE", "value": "/secrets/word"}],
        volumeMounts=[{"name": "v", "mountPath": "/secrets"}],
        of_pod={"volumes": [volume]},
    )
    stand_in.core.create_namespaced_pod(namespace, body)
    _ended(stand_in, namespace, "a")
    assert stand_in.core.read_namespaced_pod_log("a", namespace) == "rosebud 0o100400\n"


def test_a_pod_with_a_missing_secret_reports_a_config_error(
    cluster: Cluster, namespace: str
) -> None:
    env = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "none", "key": "word"}}}]
    if not cluster.is_stand_in:
        pytest.skip("how a missing secret is told is up to the kubelet")
    cluster.core.create_namespaced_pod(namespace, pod("a", WAIT, env=env))
    _waits_for(cluster, namespace, "a", "CreateContainerConfigError")


@pytest.mark.parametrize(("restart", "phase"), [("Never", "Failed"), ("Always", "Running")])
def test_a_failed_container_is_restarted_according_to_its_policy(
    cluster: Cluster, namespace: str, restart: str, phase: str
) -> None:
    body = pod("a", "import sys; print('gone'); sys.exit(7)", restart=restart)
    cluster.core.create_namespaced_pod(namespace, body)
    if restart == "Never":
        assert _ended(cluster, namespace, "a").exit_code == 7
    else:
        _waits_for(cluster, namespace, "a", "CrashLoopBackOff")
        status = cluster.pod(namespace, "a").status.container_statuses[0]
        assert status.restart_count >= 1
        assert status.last_state.terminated.exit_code == 7
    eventually(lambda: cluster.pod(namespace, "a").status.phase == phase)


def test_a_pod_that_cannot_be_pulled_or_scheduled_reports_the_reason(
    cluster: Cluster, namespace: str
) -> None:
    hangs = pod("pull", WAIT, meta={"annotations": {"test/kubelet": "hang-pull"}}, image=MISSING)
    cluster.core.create_namespaced_pod(namespace, hangs)
    greedy = pod("gpu", WAIT, resources={"limits": {"nvidia.com/gpu": "1000"}})
    cluster.core.create_namespaced_pod(namespace, greedy)
    _waits_for(cluster, namespace, "pull", "ImagePullBackOff", "ErrImagePull")

    def reason() -> str:
        conditions = cluster.pod(namespace, "gpu").status.conditions or []
        return next((one.message for one in conditions if one.reason == "Unschedulable"), "")

    assert "Insufficient nvidia.com/gpu" in eventually(reason)


def test_a_container_out_of_memory_is_reported_as_oom_killed(
    cluster: Cluster, namespace: str
) -> None:
    cluster.core.create_namespaced_pod(namespace, pod("a", WAIT))
    eventually(lambda: cluster.pod(namespace, "a").status.phase == "Running")
    cluster.break_pod(namespace, "a", "oom")
    ended = _ended(cluster, namespace, "a")
    assert (ended.reason, ended.exit_code) == ("OOMKilled", 137)


def test_a_container_is_killed_after_its_grace_period(cluster: Cluster, namespace: str) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "print('begun', flush=True)\n"
        "while True: signal.pause()"
    )
    body = pod("a", code)
    body["spec"]["terminationGracePeriodSeconds"] = 1
    cluster.core.create_namespaced_pod(namespace, body)
    eventually(lambda: cluster.pod(namespace, "a").status.phase == "Running")
    gone = cluster.core.delete_namespaced_pod("a", namespace)
    assert gone.metadata.deletion_grace_period_seconds == 1
    eventually(lambda: not cluster.pods(namespace))


def test_a_stateful_set_replaces_a_pod_with_the_same_name(cluster: Cluster, namespace: str) -> None:
    body = stateful_set("w", SERVE, 2, env=[ADDRESS], readinessProbe=TCP_PROBE)
    cluster.apps.create_namespaced_stateful_set(namespace, body)
    eventually(lambda: sum(map(_is_ready, cluster.pods(namespace))) == 2)
    old = cluster.pod(namespace, "w-1")
    assert old.metadata.labels["apps.kubernetes.io/pod-index"] == "1"
    cluster.core.delete_namespaced_pod("w-1", namespace)

    def replaced() -> Any:
        found = [one for one in cluster.pods(namespace) if one.metadata.name == "w-1"]
        return found and found[0].metadata.uid != old.metadata.uid and _is_ready(found[0])

    eventually(replaced)
    assert cluster.pod(namespace, "w-1").status.pod_ip != old.status.pod_ip
    cluster.apps.patch_namespaced_stateful_set_scale("w", namespace, {"spec": {"replicas": 1}})
    eventually(lambda: [one.metadata.name for one in cluster.pods(namespace)] == ["w-0"])


def test_an_indexed_job_completes_when_all_its_indexes_have_completed(
    cluster: Cluster, namespace: str
) -> None:
    code = "import os; print(os.environ['JOB_COMPLETION_INDEX'])"
    body = indexed_job("j", code, 3, ttlSecondsAfterFinished=0)
    cluster.batch.create_namespaced_job(namespace, body)
    eventually(lambda: not cluster.leftovers(namespace))


def test_a_job_fails_after_its_backoff_limit(cluster: Cluster, namespace: str) -> None:
    body = indexed_job("j", "import sys; sys.exit(3)", 1, backoffLimit=1)
    cluster.batch.create_namespaced_job(namespace, body)

    def failed() -> bool:
        conditions = cluster.batch.read_namespaced_job("j", namespace).status.conditions or []
        return any(one.reason == "BackoffLimitExceeded" for one in conditions)

    eventually(failed)


def test_pods_of_a_lost_node_are_replaced_elsewhere(cluster: Cluster, namespace: str) -> None:
    body = indexed_job("j", WAIT, 1)
    body["spec"]["template"]["spec"]["tolerations"] = [
        {
            "key": "node.kubernetes.io/unreachable",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 1,
        }
    ]
    cluster.batch.create_namespaced_job(namespace, body)
    running = eventually(
        lambda: [one for one in cluster.pods(namespace) if one.status.phase == "Running"]
    )
    node = running[0].spec.node_name
    cluster.break_node(node, "dead")
    try:
        eventually(
            lambda: any(
                one.spec.node_name != node and one.status.phase == "Running"
                for one in cluster.pods(namespace)
            ),
            patience_s=60,
        )
    finally:
        cluster.break_node(node, None)
