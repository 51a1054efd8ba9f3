"""Create the hosts of MeshJobs in a Kubernetes cluster: `python -m mesh_jobs.operator`.

Several instances may run at once: one is active, and a standby takes over when it is lost. The
action `manifests` prints the objects that must be applied to the cluster first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mesh_core import MeshError

__all__: list[str] = []

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        # The import is here because kubernetes is an optional dependency.
        from mesh_jobs._operator.instance import print_manifests, run_instance  # noqa: PLC0415

        namespace = given.namespace or _own_namespace()
        if given.action == "manifests":
            print_manifests(namespace, given.image, is_cluster_wide=given.all_namespaces)
        else:
            run_instance(
                namespace,
                lease_namespace=given.lease_namespace or namespace,
                lease_s=given.lease,
                kubeconfig=given.kubeconfig,
                cluster_context=given.context,
                is_cluster_wide=given.all_namespaces,
            )
    except ModuleNotFoundError as error:
        if error.name not in ("kubernetes", "urllib3", "yaml"):
            raise
        print(
            "mesh operator: torchmesh-jobs[kubernetes] is not installed: install it",
            file=sys.stderr,
        )
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


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text().strip()
    except FileNotFoundError:
        return "default"


if __name__ == "__main__":
    sys.exit(main())
