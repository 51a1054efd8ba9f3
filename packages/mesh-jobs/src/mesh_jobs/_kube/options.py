"""The options of a Kubernetes job: how it uses the cluster, and which pods its meshes have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mesh_core import ConfigError

__all__ = ["ExistingPods", "KubernetesOptions", "PodOptions"]

_PORT = 26600
_PORT_MAX = 65533
_WORKLOADS = ("job", "statefulset", "pods", "jobset")


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """How a job uses the cluster and connects to its pods.

        KubernetesJob("research", options=KubernetesOptions(workload="statefulset"))

    Attributes:
        workload: The workload that a mesh consists of. `job` is an indexed Job, which completes
            when its lease expires. `statefulset` replaces a pod under the same name; its pods are
            restarted forever, so it remains until the job is killed. `pods` are not replaced, and
            need the fewest permissions. `jobset` is one JobSet for all meshes, for clusters that
            have JobSet.
        credentials_secret: The Secret by which the job and existing pods authenticate each other,
            for meshes of `ExistingPods`. `KubernetesJob.new_secret` creates one.
        kubeconfig: The kubeconfig file. Defaults to the service account of the pod that runs the
            program, or outside of a cluster to the kubeconfig of the user.
        cluster_context: The context in the kubeconfig. Defaults to its current context.
        attach_to: The address of a worker, such as that of a load balancer, if the program cannot
            reach the pods directly: `tcp://mesh.example.org:26600`.
        port_forward: Whether to connect to the pods through the API server. By default, this is
            done if no worker can be reached directly.

    Raises:
        ConfigError: `workload` has another value.
    """

    workload: str = "job"
    credentials_secret: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None
    cluster_context: str | None = None
    attach_to: str | None = None
    port_forward: bool | None = None

    def __post_init__(self) -> None:
        if self.workload not in _WORKLOADS:
            raise ConfigError(
                f"workload is {self.workload!r}: choose one of {', '.join(_WORKLOADS)}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the job's record."""
        # The path is absolute because another program may apply the job from another folder.
        kubeconfig = None if self.kubeconfig is None else os.path.abspath(self.kubeconfig)
        return {
            "workload": self.workload,
            "credentials_secret": self.credentials_secret,
            "kubeconfig": kubeconfig,
            "cluster_context": self.cluster_context,
            "attach_to": self.attach_to,
            "port_forward": self.port_forward,
        }


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """The pods that a job creates for a mesh, apart from their image and their resources.

        job.add_mesh("trainers", 4, image_spec=image, pods=PodOptions(node_selector={"zone": "a"}))

    Attributes:
        labels: More labels for the workload and its pods, such as
            `{"kueue.x-k8s.io/queue-name": "research"}`.
        annotations: More annotations for the workload and its pods.
        node_selector: The labels that a node must have.
        tolerations: The taints that a node may have.
        gpu_resource: The resource name of GPUs in the cluster.
        port: The port of the workers, each at the address of its pod. Their control service uses
            the next port, and their health service the one after that.
        pod_template: A PodTemplateSpec as a mapping, for all other settings. The worker runs in its
            container `worker`.

    Raises:
        ConfigError: `port` is not from 1 to 65533.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    gpu_resource: str = "nvidia.com/gpu"
    port: int = _PORT
    pod_template: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_port(self.port)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the job's record."""
        return {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "node_selector": dict(self.node_selector),
            "tolerations": [dict(one) for one in self.tolerations],
            "gpu_resource": self.gpu_resource,
            "port": self.port,
            "pod_template": self.pod_template,
        }


@dataclass(frozen=True, kw_only=True)
class ExistingPods:
    """Pods of another controller that are the hosts of a mesh; the job creates none.

        job.add_mesh("trainers", 4, existing_pods=ExistingPods(label_selector="app=trainers"))

    Attributes:
        label_selector: The label selector of the pods, such as `app=workers,team=blue`.
        pod_rank_label: The label of a pod that contains its rank in the mesh. A pod without the
            label uses the number at the end of its name.
        port: The port of the workers, each at the address of its pod.

    Raises:
        ConfigError: `port` is not from 1 to 65533.
    """

    label_selector: str
    pod_rank_label: str = "apps.kubernetes.io/pod-index"
    port: int = _PORT

    def __post_init__(self) -> None:
        _check_port(self.port)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the job's record."""
        return {
            "label_selector": self.label_selector,
            "pod_rank_label": self.pod_rank_label,
            "port": self.port,
        }


def _check_port(port: int) -> None:
    if not 0 < port <= _PORT_MAX:
        raise ConfigError(
            f"port is {port}: give one from 1 to {_PORT_MAX}; the next two ports are used too"
        )
