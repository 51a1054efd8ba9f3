"""Create the hosts of MeshJobs in a Kubernetes cluster: `python -m mesh_jobs.operator`.

Several instances may run at once: one is active, and a standby takes over when it is lost. The
action `manifests` prints the objects that must be applied to the cluster first.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
import uuid
from pathlib import Path

from mesh_core import MeshError
from mesh_core.spi import on_signals

__all__: list[str] = []

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        if given.action == "manifests":
            from mesh_jobs._operator.manifests import operator_manifests

            namespace = given.namespace or _own_namespace()
            text = operator_manifests(namespace, given.image, is_cluster_wide=given.all_namespaces)
            print(text, end="")
            return 0
        _run(given)
    except ModuleNotFoundError as error:
        if error.name not in ("kubernetes", "yaml"):
            raise
        print("mesh operator: mesh-jobs[kubernetes] is not installed: install it", file=sys.stderr)
        return 1
    except (MeshError, OSError) as error:
        print(f"mesh operator: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mesh_jobs.operator", description=__doc__)
    add = parser.add_argument
    add("action", nargs="?", default="run", choices=("run", "manifests"))
    add("--namespace", metavar="NAME", help="namespace whose MeshJobs it manages (its own)")
    add("--all-namespaces", action="store_true", help="manage the MeshJobs of all namespaces")
    add("--lease-namespace", metavar="NAME", help="namespace of the leader lease")
    add("--lease", type=int, default=15, metavar="S", help="seconds until another takes over")
    add("--kubeconfig", metavar="FILE", help="cluster configuration outside a pod")
    add("--context", metavar="NAME", help="context in the kubeconfig")
    add("--image", default="mesh-jobs:latest", metavar="NAME", help="image of the operator")
    return parser


def _run(given: argparse.Namespace) -> None:
    from mesh_jobs._kube_api.client import KubeApi
    from mesh_jobs._operator.leader_election import Leadership
    from mesh_jobs._operator.operator import Operator

    own = given.namespace or _own_namespace()
    api = KubeApi("" if given.all_namespaces else own, given.kubeconfig, given.context)
    ended, changed = threading.Event(), threading.Event()

    def end() -> None:
        ended.set()
        changed.set()

    holder = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    there = api.within(given.lease_namespace or own)
    leadership = Leadership(there, "mesh-operator", holder, given.lease, changed)
    print(f"mesh operator {holder} manages {api.namespace or 'all namespaces'}", flush=True)
    with on_signals((signal.SIGTERM, signal.SIGINT), end):
        Operator(api, leadership, changed).run(ended)


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text().strip()
    except FileNotFoundError:
        return "default"


if __name__ == "__main__":
    sys.exit(main())
