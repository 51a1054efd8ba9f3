"""One instance of the operator: what the actions of `python -m mesh_jobs.operator` do."""

from __future__ import annotations

import signal
import socket
import threading
import uuid

from mesh_core.spi import on_signals
from mesh_jobs._kube_api.client import KubeApi
from mesh_jobs._operator.leader_election import Leadership
from mesh_jobs._operator.manifests import operator_manifests
from mesh_jobs._operator.operator import Operator

__all__ = ["print_manifests", "run_instance"]

_LEASE = "mesh-operator"


def print_manifests(namespace: str, image: str, *, is_cluster_wide: bool) -> None:
    """Print the manifests that an administrator applies before the first MeshJob.

    Args:
        namespace: The namespace of the operator.
        image: The image of the operator.
        is_cluster_wide: Whether the operator manages the MeshJobs of all namespaces.
    """
    print(operator_manifests(namespace, image, is_cluster_wide=is_cluster_wide), end="")


def run_instance(
    namespace: str,
    *,
    lease_namespace: str,
    lease_s: int,
    kubeconfig: str | None,
    cluster_context: str | None,
    is_cluster_wide: bool,
) -> None:
    """Run an instance until the process receives SIGTERM or SIGINT.

    Args:
        namespace: The namespace whose MeshJobs it manages.
        lease_namespace: The namespace of the Lease of the active instance.
        lease_s: The duration of the Lease, in seconds.
        kubeconfig: The kubeconfig file; None for the service account of the pod.
        cluster_context: The context in the kubeconfig; None for its current context.
        is_cluster_wide: Whether it manages the MeshJobs of all namespaces instead.

    Raises:
        ConfigError: The configuration of the cluster is invalid.
        JobError: The API server rejects a request.
    """
    api = KubeApi("" if is_cluster_wide else namespace, kubeconfig, cluster_context)
    ended, changed = threading.Event(), threading.Event()

    def end() -> None:
        ended.set()
        changed.set()

    holder = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    leadership = Leadership(api.within(lease_namespace), _LEASE, holder, lease_s, changed)
    print(f"mesh operator {holder} manages {api.namespace or 'all namespaces'}", flush=True)
    with on_signals((signal.SIGTERM, signal.SIGINT), end):
        Operator(api, leadership, changed).run(ended)
