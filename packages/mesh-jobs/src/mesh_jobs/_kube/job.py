"""Hosts that are pods of a Kubernetes cluster."""

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
# Until an operator has seen a MeshJob.
_LOOK_S = 0.2
# Nobody renews them: pods that stay for longer are given new ones.
_KEYS_LIVE_S = 365 * 24 * 3600.0
_WORKLOADS = ("job", "statefulset", "pods", "jobset")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class KubernetesJob(Job):
    """A job whose hosts are pods; needs `mesh-jobs[kubernetes]`.

        job = KubernetesJob("research", timeout=600)
        job.add_mesh("trainers", 4, image_spec=ImageSpec("registry.example.org/train:7"), gpus=8)
        state = job.state()

    Nothing has to be installed in the cluster, and the pods keep to the restricted profile. A pod
    that is lost is replaced, and `state` takes the new one into the mesh.

    Args:
        namespace: Where everything is made.
        timeout: For how many seconds `state` waits; for ever when left out.
        kubeconfig: The file that says where the cluster is. When left out the service account of
            the pod that the program runs in, else the user's own file.
        attach_to: The address of a worker, where the program does not reach pods by themselves,
            such as that of a load balancer: `tcp://mesh.example.org:26600`.
        port_forward: Whether to reach the pods through the API server. When left out that is done
            when no worker can be reached directly.
        mesh_job: The name of a MeshJob of the namespace, to use its hosts and make none.
        credentials_secret: The Secret with which pods of another maker and this job trust each
            other; for meshes with a `label_selector`. `new_secret` makes one.
        workload: What a mesh is made of. `job`, an indexed Job, goes when its lease is over.
            `statefulset` gives a pod the same name again; its pods are restarted for ever, so it
            stays until it is killed. `pods` are replaced by nobody, and need the fewest rights.
            `jobset` is one JobSet of all meshes, for clusters that have JobSet.
        cluster_context: The context in the kubeconfig; its current one when left out.
        name: What the job is called.
        ttl_s: How long the hosts stay when no program uses them.
        context: Under what name it is applied.
        folder: In which folder the state is; the current one when left out.

    Raises:
        ConfigError: A name or a choice is none.
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
            raise ConfigError(f"{namespace!r} is no namespace: use lower-case letters and digits")
        if workload not in _WORKLOADS:
            raise ConfigError(f"workload is {workload!r}: choose one of {', '.join(_WORKLOADS)}")
        if mesh_job is not None and credentials_secret is not None:
            raise ConfigError("a MeshJob has a Secret of its own: leave out credentials_secret")
        options = {
            "namespace": namespace,
            # Another program may apply from another folder.
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
        """Asks for one more mesh; before `apply`.

        Args:
            name: What it is called in the program.
            num_replicas: How many pods it has.
            label_selector: The labels of pods that somebody else has made, such as
                `app=workers,team=blue`: the mesh is these, and none are made.
            pod_rank_label: The label of such a pod that has its place in the mesh; where it has
                none, that is the number at the end of its name.
            image_spec: The image, and how the worker is run in it.
            port: Where workers listen, each at the address of its pod; their control service
                listens at the next one, and at the one after that they say how they are.
            pod_template: A PodTemplateSpec as a mapping, for whatever is not an argument here. Its
                container `worker` is the one that the worker runs in.
            labels: More labels for the workload and its pods, such as
                `{"kueue.x-k8s.io/queue-name": "research"}`.
            annotations: More annotations for both.
            cpus: Processors of each pod.
            memory: Memory of each pod, such as `32Gi`.
            gpus: GPUs of each pod.
            gpu_resource: What the cluster calls them.
            node_selector: The labels that a node must have.
            tolerations: The taints that a node may have.

        Raises:
            ConfigError: The name is taken or not one, a number is not one, or some arguments are
                for pods of others and some for pods of the job's own.
        """
        self._check_maker(name, label_selector, image_spec, pod_template)
        if not 0 < port < 65534:
            raise ConfigError(
                f"port is {port}: give one from 1 to 65533; the next two are taken too"
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
            raise ConfigError(f"MeshJob {options['mesh_job']} has its meshes: add none to it here")
        if (selector is not None) != (options["credentials_secret"] is not None):
            raise ConfigError(
                f"mesh {name!r}: pods of another maker need both label_selector and the job's "
                "credentials_secret, and pods of its own neither"
            )
        if selector is not None and (image is not None or template is not None):
            raise ConfigError(
                f"mesh {name!r} is pods of another maker: give label_selector, or image_spec and "
                "pod_template"
            )

    @staticmethod
    def new_secret(name: str) -> str:
        """Gives a new Secret as YAML, with which pods of another maker and jobs trust each other.

        Its key `worker` is for the pods, which run
        `python -m mesh_jobs.worker --secret env:MESH_WORKER_SECRET`, and `controller` for jobs.

        Args:
            name: What it is called, for `credentials_secret`.
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
        """Gives the manifests that `apply` would submit, as YAML; submits nothing.

        Args:
            check: Let the server check them too, with quotas, rights and policies, and keep none.

        Raises:
            SchedulerUnreachable: The server does not answer.
            JobError: It refuses them; the message has its words.
        """
        spec = self._spec
        self._spec = replace(spec, options={**spec.options, "is_checked_by_server": check})
        try:
            return super().plan()
        finally:
            self._spec = spec

    def role(self) -> str:
        """Gives the role that whoever applies this job needs in its namespace, as YAML."""
        options = self._spec.options
        is_attached = bool(options["mesh_job"] or options["credentials_secret"])
        workload = "attached" if is_attached else str(options["workload"])
        return role(str(options["namespace"]), workload, bool(options["port_forward"]))

    def state(
        self,
        timeout: float | None = None,
        progress: Progress | None = None,
        *,
        beside: bool = False,
    ) -> JobState:
        """Waits until all hosts are up, and attaches to them: see `Job.state`.

        Args:
            timeout: For how many seconds to wait; that of the job when left out.
            progress: Is called with the status whenever that has changed.
            beside: Whether to be served beside the program that uses the hosts.
        """
        limit = self._timeout if timeout is None else timeout
        if self._spec.options["mesh_job"] is None:
            return super().state(limit, progress, beside=beside)
        until = None if limit is None else time.monotonic() + limit
        while True:
            try:
                self.apply()  # Its size is the MeshJob's now.
                break
            except JobPending:
                if until is not None and time.monotonic() >= until:
                    raise
                time.sleep(_LOOK_S)
        left = None if until is None else max(until - time.monotonic(), 0)
        return super().state(left, progress, beside=beside)
