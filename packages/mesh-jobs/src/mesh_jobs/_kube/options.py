"""The options of a Kubernetes job: how it uses the cluster, and which pods its meshes have."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mesh_core import ConfigError

__all__ = ["TERMINATION_GRACE_S", "ExistingPods", "KubernetesOptions", "PodOptions"]

_PORT = 26600
_PORT_MAX = 65533
#: The default grace period of pods. A checkpoint must fit: 600 s suffice to write the memory of
#: eight GPUs with 80 GB at 1.1 GB/s. It is also the longest time that the cluster autoscaler waits.
TERMINATION_GRACE_S = 600
# The worker needs a part of the grace period to stop the remaining processes.
_TERMINATION_GRACE_MIN_S = 5
_QUEUE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
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
        termination_grace_s: The grace period of the pods in seconds: how long the actors of a host
            can save their state after `on_leaving` was called. The pod ends as soon as they have
            ended, so a long period does not cause delays. It does not apply to `kill` and `resize`,
            which allow 10 s.
        evictions_max: How many pods of each mesh may be evicted at the same time, such as by
            `kubectl drain`; creates a PodDisruptionBudget for each mesh. With 0, no pod is evicted
            while the job exists. By default, there is no limit.
        watch_nodes: Whether `on_leaving` is also called when the node of a pod is cordoned or is
            about to be removed, before the pod is evicted. Requires the permission to list and
            watch the nodes of the cluster, which `KubernetesJob.role` prints as a ClusterRole.
        queue: The LocalQueue of Kueue that admits all hosts of the job together. Several meshes
            need the workload `pods` or `jobset`.

    Raises:
        ConfigError: `workload` has another value, a number is too small, or `queue` is not a valid
            name.
    """

    workload: str = "job"
    credentials_secret: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None
    cluster_context: str | None = None
    attach_to: str | None = None
    port_forward: bool | None = None
    termination_grace_s: int = TERMINATION_GRACE_S
    evictions_max: int | None = None
    watch_nodes: bool = False
    queue: str | None = None

    def __post_init__(self) -> None:
        if self.workload not in _WORKLOADS:
            raise ConfigError(
                f"workload is {self.workload!r}: choose one of {', '.join(_WORKLOADS)}"
            )
        if not _is_int(self.termination_grace_s, _TERMINATION_GRACE_MIN_S):
            raise ConfigError(
                f"termination_grace_s is {self.termination_grace_s!r}: give a whole number of "
                f"seconds, at least {_TERMINATION_GRACE_MIN_S}"
            )
        if self.evictions_max is not None and not _is_int(self.evictions_max, 0):
            raise ConfigError(
                f"evictions_max is {self.evictions_max!r}: give a number of pods, or None for no "
                "limit"
            )
        if self.queue is not None and not _QUEUE.fullmatch(self.queue):
            raise ConfigError(
                f"{self.queue!r} is not the name of a LocalQueue: use lower-case letters, digits, "
                "dashes and dots"
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
            "termination_grace_s": self.termination_grace_s,
            "evictions_max": self.evictions_max,
            "watch_nodes": self.watch_nodes,
            "queue": self.queue,
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


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_port(port: int) -> None:
    if not 0 < port <= _PORT_MAX:
        raise ConfigError(
            f"port is {port}: give one from 1 to {_PORT_MAX}; the next two ports are used too"
        )
