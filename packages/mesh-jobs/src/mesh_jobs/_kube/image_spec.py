"""The container image of workers, with its Python, its resources and its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ImageSpec"]


@dataclass(frozen=True)
class ImageSpec:
    """The container image of a mesh's workers; mesh-jobs must be installed in it.

    Attributes:
        image: The name of the image, as the cluster pulls it.
        resources: The resources of each pod by Kubernetes name, such as
            `{"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": 8}`; used as both requests and limits.
        python: The Python interpreter in the image.
        env: Additional environment variables of the workers.
        pull_secrets: The names of the secrets for pulling the image.
        pull_policy: `Always`, `IfNotPresent` or `Never`. Defaults to the policy of the cluster.
        shared_memory: The size limit of `/dev/shm`, such as `16Gi`. Defaults to half of the memory
            of the node. It counts toward the memory of the pod. With `0`, the pod has no volume
            for it: `/dev/shm` then has the size that the container runtime sets, usually 64 MB, and
            `kubectl drain` does not need `--delete-emptydir-data`.
        run_as_user: The user id, which must not be 0. None uses the user of the image.
    """

    image: str
    resources: Mapping[str, Any] | None = None
    python: str = "python"
    env: Mapping[str, str] = field(default_factory=dict)
    pull_secrets: Sequence[str] = ()
    pull_policy: str | None = None
    shared_memory: str | None = None
    run_as_user: int | None = 1000

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the job's record."""
        return {
            "image": self.image,
            "resources": dict(self.resources or {}),
            "python": self.python,
            "env": dict(self.env),
            "pull_secrets": list(self.pull_secrets),
            "pull_policy": self.pull_policy,
            "shared_memory": self.shared_memory,
            "run_as_user": self.run_as_user,
        }
