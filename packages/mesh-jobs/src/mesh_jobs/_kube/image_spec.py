"""What a pod runs: the image, its Python, and what it needs of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ImageSpec"]


@dataclass(frozen=True)
class ImageSpec:
    """The container image of a mesh's workers. It has to have mesh-jobs installed.

    Attributes:
        image: Its name, as the cluster pulls it.
        resources: What each pod gets, by the names of Kubernetes, such as
            `{"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": 8}`; requests and limits alike.
        python: The Python in it.
        env: What to add to the environment of the workers.
        pull_secrets: Names of the secrets that the cluster pulls it with.
        pull_policy: `Always`, `IfNotPresent` or `Never`; the cluster's choice when left out.
        shared_memory: How large `/dev/shm` may get, such as `16Gi`; half of the node's memory when
            left out. It counts as memory of the pod.
        run_as_user: The number of the user that it runs as, who must not be root; None takes the
            image's own.
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
        """Gives plain values that the job's record keeps."""
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
