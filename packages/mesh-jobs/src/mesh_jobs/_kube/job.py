"""Jobs on hosts that are pods of a Kubernetes cluster."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from mesh_core import ConfigError, Credentials
from mesh_jobs._errors import JobPending
from mesh_jobs._job.job import Job, Progress
from mesh_jobs._job.state import JobState
from mesh_jobs._kube.image_spec import ImageSpec
from mesh_jobs._kube.rbac import role
from mesh_jobs._kube.secret import CONTROLLER_KEY, encoded, packed
from mesh_jobs._spec import MeshSpec

__all__ = ["DEFAULT_PORT", "KubernetesJob"]

DEFAULT_PORT = 26600
# The poll interval until an operator has processed a MeshJob.
_LOOK_S = 0.2
# The credentials are not renewed: pods that run longer need new ones.
_KEYS_LIVE_S = 365 * 24 * 3600.0
_WORKLOADS = ("job", "statefulset", "pods", "jobset")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class KubernetesJob(Job):
    """A job whose hosts are pods; requires `mesh-jobs[kubernetes]`.

        job = KubernetesJob("research", timeout=600)
        job.add_mesh("trainers", 4, image_spec=ImageSpec("registry.example.org/train:7"), gpus=8)
        state = job.state()

    Nothing has to be installed in the cluster, and the pods comply with the restricted Pod Security
    profile. A lost pod is replaced, and `state` adds the replacement to the mesh.

    Args:
        namespace: The namespace of all created resources.
        timeout: The timeout of `state` in seconds. Defaults to no limit.
        kubeconfig: The kubeconfig file. Defaults to the service account of the pod that runs the
            program, or outside of a cluster to the kubeconfig of the user.
        attach_to: The address of a worker, such as that of a load balancer, if the program cannot
            reach the pods directly: `tcp://mesh.example.org:26600`.
        port_forward: Whether to connect to the pods through the API server. By default, this is
            done if no worker can be reached directly.
        mesh_job: The name of a MeshJob in the namespace, whose hosts are used instead of new ones.
        credentials_secret: The Secret by which the job and existing pods authenticate each other,
            for meshes with a `label_selector`. `new_secret` creates one.
        workload: The workload that a mesh consists of. `job` is an indexed Job, which completes
            when its lease expires. `statefulset` replaces a pod under the same name; its pods are
            restarted forever, so it remains until the job is killed. `pods` are not replaced, and
            need the fewest permissions. `jobset` is one JobSet for all meshes, for clusters that
            have JobSet.
        cluster_context: The context in the kubeconfig. Defaults to its current context.
        name: The name of the job.
        ttl_s: The time in seconds for which the hosts are kept while no program uses them.
        context: The context under which the job is applied.
        folder: The folder that contains the state. Defaults to the current folder.

    Raises:
        ConfigError: A name or an option is invalid.
    """

    def __init__(
        self,
        namespace: str,
        timeout: float | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        attach_to: str | None = None,
        *,
        port_forward: bool | None = None,
        mesh_job: str | None = None,
        credentials_secret: str | None = None,
        workload: str = "job",
        cluster_context: str | None = None,
        name: str = "mesh",
        ttl_s: float = 3600.0,
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                f"{namespace!r} is not a namespace: use lower-case letters and digits"
            )
        if workload not in _WORKLOADS:
            raise ConfigError(f"workload is {workload!r}: choose one of {', '.join(_WORKLOADS)}")
        if mesh_job is not None and credentials_secret is not None:
            raise ConfigError("a MeshJob has its own Secret: leave out credentials_secret")
        options = {
            "namespace": namespace,
            # The path is absolute because another program may apply the job from another folder.
            "kubeconfig": None if kubeconfig is None else os.path.abspath(kubeconfig),
            "attach_to": attach_to,
            "workload": workload,
            "cluster_context": cluster_context,
            "port_forward": port_forward,
            "mesh_job": mesh_job,
            "credentials_secret": credentials_secret,
        }
        super().__init__(
            backend="kubernetes",
            name=name,
            options=options,
            ttl_s=ttl_s,
            context=context,
            folder=folder,
        )
        self._timeout = timeout

    def add_mesh(  # type: ignore[override]
        self,
        name: str,
        num_replicas: int,
        label_selector: str | None = None,
        pod_rank_label: str = "apps.kubernetes.io/pod-index",
        *,
        image_spec: ImageSpec | None = None,
        port: int = DEFAULT_PORT,
        pod_template: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        cpus: int | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        gpu_resource: str = "nvidia.com/gpu",
        node_selector: Mapping[str, str] | None = None,
        tolerations: Sequence[Mapping[str, Any]] = (),
    ) -> Self:
        """Add a mesh to the job; call this before `apply`.

        Args:
            name: The name of the mesh in the program.
            num_replicas: The number of pods.
            label_selector: The label selector of existing pods, such as `app=workers,team=blue`.
                The mesh consists of these pods, and no pods are created.
            pod_rank_label: The label of an existing pod that contains its rank in the mesh. A pod
                without the label uses the number at the end of its name.
            image_spec: The image, and how the worker runs in it.
            port: The port of the workers, each at the address of its pod. Their control service
                uses the next port, and their health service the one after that.
            pod_template: A PodTemplateSpec as a mapping, for all settings without an argument. The
                worker runs in its container `worker`.
            labels: More labels for the workload and its pods, such as
                `{"kueue.x-k8s.io/queue-name": "research"}`.
            annotations: More annotations for the workload and its pods.
            cpus: The number of CPUs per pod.
            memory: The memory per pod, such as `32Gi`.
            gpus: The number of GPUs per pod.
            gpu_resource: The resource name of GPUs in the cluster.
            node_selector: The labels that a node must have.
            tolerations: The taints that a node may have.

        Raises:
            ConfigError: The name is invalid or used already, a number is invalid, or arguments for
                existing pods are combined with arguments for new ones.
        """
        self._check_maker(name, label_selector, image_spec, pod_template)
        if not 0 < port < 65534:
            raise ConfigError(
                f"port is {port}: give one from 1 to 65533; the next two ports are used too"
            )
        options = {
            "image_spec": None if image_spec is None else image_spec.to_json(),
            "port": port,
            "pod_template": pod_template,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "gpu_resource": gpu_resource,
            "node_selector": dict(node_selector or {}),
            "tolerations": [dict(one) for one in tolerations],
        }
        if label_selector is not None:
            options = {
                "port": port,
                "label_selector": label_selector,
                "pod_rank_label": pod_rank_label,
            }
        mesh = MeshSpec(name, num_replicas, cpus, memory, gpus, options)
        self._spec = replace(self._spec, meshes=(*self._spec.meshes, mesh))
        return self

    def _check_maker(
        self, name: str, selector: str | None, image: ImageSpec | None, template: object
    ) -> None:
        options = self._spec.options
        if options["mesh_job"] is not None:
            raise ConfigError(
                f"MeshJob {options['mesh_job']} defines its own meshes: do not add any"
            )
        if (selector is not None) != (options["credentials_secret"] is not None):
            raise ConfigError(
                f"mesh {name!r}: existing pods need both label_selector and the job's "
                "credentials_secret; pods that the job creates need neither"
            )
        if selector is not None and (image is not None or template is not None):
            raise ConfigError(
                f"mesh {name!r} has label_selector, which selects existing pods: give either "
                "label_selector, or image_spec and pod_template"
            )

    @staticmethod
    def new_secret(name: str) -> str:
        """Return a new Secret as YAML, by which existing pods and jobs authenticate each other.

        Its key `worker` is for the pods, which run
        `python -m mesh_jobs.worker --secret env:MESH_WORKER_SECRET`. Its key `controller` is for
        jobs.

        Args:
            name: The name of the Secret, for `credentials_secret`.
        """
        credentials = Credentials.create(valid_for=_KEYS_LIVE_S)
        worker = credentials.issue(role="worker", name="any")
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "data": {
                CONTROLLER_KEY: encoded(packed(credentials)),
                "worker": encoded(packed(worker)),
            },
        }
        return json.dumps(body, indent=2) + "\n"

    def plan(self, *, check: bool = False) -> str:
        """Return the manifests that `apply` would submit, as YAML; submits nothing.

        Args:
            check: Whether the server also validates them in a dry run, with quotas, permissions and
                policies.

        Raises:
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the manifests; the message contains its reason.
        """
        spec = self._spec
        self._spec = replace(spec, options={**spec.options, "is_checked_by_server": check})
        try:
            return super().plan()
        finally:
            self._spec = spec

    def role(self) -> str:
        """Return the role that is needed in the namespace to apply this job, as YAML."""
        options = self._spec.options
        is_attached = bool(options["mesh_job"] or options["credentials_secret"])
        workload = "attached" if is_attached else str(options["workload"])
        return role(str(options["namespace"]), workload, bool(options["port_forward"]))

    def state(
        self,
        timeout: float | None = None,
        progress: Progress | None = None,
        *,
        observer: bool = False,
    ) -> JobState:
        """Wait until all hosts are up, and attach to them; see `Job.state`.

        Args:
            timeout: The timeout in seconds. Defaults to the job's timeout.
            progress: A function that is called with the status whenever it changes.
            observer: Whether to attach in an additional session, next to the program that uses the
                hosts.
        """
        limit = self._timeout if timeout is None else timeout
        if self._spec.options["mesh_job"] is None:
            return super().state(limit, progress, observer=observer)
        until = None if limit is None else time.monotonic() + limit
        while True:
            try:
                self.apply()  # The MeshJob defines the size.
                break
            except JobPending:
                if until is not None and time.monotonic() >= until:
                    raise
                time.sleep(_LOOK_S)
        left = None if until is None else max(until - time.monotonic(), 0)
        return super().state(left, progress, observer=observer)
