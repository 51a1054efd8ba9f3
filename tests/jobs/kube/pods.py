"""Pods and workload objects for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.jobs.kube.cluster import Cluster
from tests.jobs.kube.image import NAME, PYTHON

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(code: str, **more: Any) -> dict[str, Any]:
    """Return a container that runs Python code."""
    command = [PYTHON, "-u", "-c", code]
    return {
        "name": "main",
        "image": NAME,
        "command": command,
        "securityContext": RESTRICTED,
        **more,
    }


def spec(code: str, restart: str = "Never", of_pod: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "containers": [container(code, **more)],
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 5,
        **(of_pod or {}),
    }


def pod(name: str, code: str, meta: Any = None, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **(meta or {})}, "spec": spec(code, **more)}


def stateful_set(name: str, code: str, replicas: int, **more: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec(code, "Always", **more)}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": template,
        },
    }


def indexed_job(name: str, code: str, completions: int, **settings: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": completions,
            "parallelism": completions,
            "template": {"spec": spec(code)},
            **settings,
        },
    }


#: Listens on the pod's address, so that a TCP probe succeeds.
SERVE = (
    "import os, socket, signal\n"
    "server = socket.create_server((os.environ['POD_IP'], 26600))\n"
    "print('serving', flush=True)\n"
    "signal.pause()"
)

ADDRESS = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
TCP_PROBE = {"tcpSocket": {"port": 26600}, "periodSeconds": 1}
WAIT = "import signal; print('begun', flush=True); signal.pause()"


def waiting_python(folder: Path) -> str:
    """Return the path of a program that acts as the Python of an image and only waits.

    A worker that runs in it never becomes ready, but is started in a moment.
    """
    path = folder / "waiting-python"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    return str(path)


def running(cluster: Cluster, namespace: str) -> int:
    """Return the number of running pods."""
    return sum(one.status.phase == "Running" for one in cluster.pods(namespace))
