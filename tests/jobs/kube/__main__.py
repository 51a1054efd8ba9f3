"""The stand-in as a program: `python -m tests.jobs.kube FOLDER` serves until its input ends."""

from __future__ import annotations

import json
import secrets
import sys
import threading
from pathlib import Path

from tests.jobs.kube.api import certificate
from tests.jobs.kube.api.api import Api, kind_of
from tests.jobs.kube.api.kind import Kinds
from tests.jobs.kube.api.permissions import Permissions
from tests.jobs.kube.api.server import Server
from tests.jobs.kube.api.store import Store
from tests.jobs.kube.controllers.deployments import Deployments
from tests.jobs.kube.controllers.disruption_budgets import DisruptionBudgets
from tests.jobs.kube.controllers.garbage import Garbage
from tests.jobs.kube.controllers.indexed_jobs import IndexedJobs
from tests.jobs.kube.controllers.job_sets import JobSets
from tests.jobs.kube.controllers.loop import Loop
from tests.jobs.kube.controllers.namespaces import Namespaces
from tests.jobs.kube.controllers.nodes import Nodes
from tests.jobs.kube.controllers.pod_groups import PodGroups
from tests.jobs.kube.controllers.stateful_sets import StatefulSets
from tests.jobs.kube.kubeconfig import write
from tests.jobs.kube.kubelet.kubelet import Kubelet
from tests.jobs.kube.kubelet.scheduler import Scheduler

#: Number of nodes of the cluster.
NODES = 4


def main(folder: Path) -> None:
    """Serve a cluster, write `kubeconfig` into the folder, and print a line of JSON when ready."""
    store, kinds, token = Store(), Kinds(), secrets.token_urlsafe(24)
    permissions = Permissions(store, kinds, token)
    api = Api(store, kinds, permissions)
    store.create(
        kind_of(kinds, "namespaces"),
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "default"},
            "status": {"phase": "Active"},
        },
    )
    kubelet = Kubelet(store, kinds, folder / "pods", NODES)
    api.read_log = kubelet.read_log
    kept = (StatefulSets, IndexedJobs, JobSets, Deployments, DisruptionBudgets, PodGroups)
    controllers = Loop(store, [one(store, kinds) for one in kept])
    # Nodes and pods have a separate loop, so that a failing controller does not stop the nodes.
    nodes = Loop(store, [kubelet, Nodes(store, kinds, kubelet.heartbeats)])
    others = Loop(store, [Scheduler(store, kinds), Garbage(store, kinds), Namespaces(store, kinds)])
    server = Server(api, *certificate.make(folder))
    url = f"https://127.0.0.1:{server.server_port}"

    def write_kubeconfig(namespace: str, account: str, path: Path) -> None:
        write(path, url, folder / "ca.crt", permissions.issue(namespace, account))

    kubelet.write_kubeconfig = write_kubeconfig
    threading.Thread(target=server.serve_forever, daemon=True, name="server").start()
    for loop in (nodes, others, controllers):
        loop.start()
    path = folder / "kubeconfig"
    write(path, url, folder / "ca.crt", token)
    print(json.dumps({"kubeconfig": str(path)}), flush=True)
    sys.stdin.read()
    for loop in (controllers, others, nodes):
        loop.end()
    server.ended.set()
    kubelet.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
