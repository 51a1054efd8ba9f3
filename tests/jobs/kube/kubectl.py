"""The command kubectl, as an administrator of a cluster uses it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.jobs.kube.cluster import PATIENCE_S, Cluster


class KubectlError(Exception):
    """kubectl failed; the message contains its standard error."""


def environment(cluster: Cluster, home: Path) -> dict[str, str]:
    """Return an environment in which kubectl uses a cluster, and keeps its cache in a folder."""
    return {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(home)}


def kubectl(cluster: Cluster, home: Path, *words: str) -> str:
    """Run kubectl and return its output.

    Raises:
        KubectlError: It failed.
    """
    done = subprocess.run(
        ["kubectl", *words],
        env=environment(cluster, home),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    if done.returncode:
        raise KubectlError(done.stderr)
    return done.stdout
