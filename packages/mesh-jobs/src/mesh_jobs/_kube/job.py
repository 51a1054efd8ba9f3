"""Jobs on hosts that are pods of a Kubernetes cluster."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from typing import Any, Self

from mesh_core import ConfigError, Credentials
from mesh_jobs._errors import JobPending
from mesh_jobs._job.job import Job, Progress
from mesh_jobs._job.state import JobState
from mesh_jobs._kube.image_spec import ImageSpec
from mesh_jobs._kube.options import (
    TERMINATION_GRACE_S,
    ExistingPods,
    KubernetesOptions,
    PodOptions,
)
from mesh_jobs._kube.rbac import role
from mesh_jobs._kube.secret import CONTROLLER_KEY, encoded, packed
from mesh_jobs._spec import MeshSpec

__all__ = ["KubernetesJob"]

# The poll interval until an operator has processed a MeshJob.
_LOOK_S = 0.2
# The credentials are not renewed: pods that run longer need new ones.
_KEYS_LIVE_S = 365 * 24 * 3600.0
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class KubernetesJob(Job):
    """A job whose hosts are pods; requires `torchmesh-jobs[kubernetes]`.

        job = KubernetesJob("research", timeout=600)
        job.add_mesh("trainers", 4, image_spec=ImageSpec("registry.example.org/train:7"), gpus=8)
        state = job.state()

    Nothing has to be installed in the cluster, and the pods comply with the restricted Pod Security
    profile. A lost pod is replaced, and `state` adds the replacement to the mesh.

    Args:
        namespace: The namespace of all created resources.
        name: The name of the job.
        timeout: The timeout of `state` in seconds if it is called without one. Defaults to no
            limit.
        mesh_job: The name of a MeshJob in the namespace, whose hosts are used instead of new ones.
        options: How the job uses the cluster and connects to its pods.
        ttl_s: The time in seconds for which the hosts are kept while no program uses them.
        context: The context under which the job is applied.
        folder: The folder that contains the state. Defaults to the current folder.

    Raises:
        ConfigError: A name is invalid, a MeshJob is combined with `credentials_secret`, or existing
            pods are combined with options of new ones.
    """

    def __init__(
        self,
        namespace: str,
        *,
        name: str = "mesh",
        timeout: float | None = None,
        mesh_job: str | None = None,
        options: KubernetesOptions | None = None,
        ttl_s: float = 3600.0,
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        options = options or KubernetesOptions()
        if not isinstance(namespace, str):
            raise ConfigError(
                f"the first argument is the namespace of the pods, not {namespace!r}: "
                'KubernetesJob("research").add_mesh("trainers", 2)'
            )
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                f"{namespace!r} is not a namespace: use lower-case letters and digits"
            )
        if mesh_job is not None and options.credentials_secret is not None:
            raise ConfigError("a MeshJob has its own Secret: leave out credentials_secret")
        is_existing = mesh_job is not None or options.credentials_secret is not None
        if is_existing and not _has_only_options_of_existing_pods(options):
            raise ConfigError(
                "the job creates no pods: leave out termination_grace_s, evictions_max and queue, "
                "and set them where the pods are created"
            )
        super().__init__(
            backend="kubernetes",
            name=name,
            options={"namespace": namespace, "mesh_job": mesh_job, **options.to_json()},
            ttl_s=ttl_s,
            context=context,
            folder=folder,
        )
        self._timeout = timeout

    def add_mesh(  # type: ignore[override]
        self,
        name: str,
        hosts: int,
        *,
        image_spec: ImageSpec | None = None,
        cpus: int | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        pods: PodOptions | None = None,
        existing_pods: ExistingPods | None = None,
    ) -> Self:
        """Add a mesh to the job; call this before `apply`.

        Args:
            name: The name of the mesh in the program.
            hosts: The number of pods.
            image_spec: The image, and how the worker runs in it.
            cpus: The number of CPUs per pod.
            memory: The memory per pod, such as `32Gi`.
            gpus: The number of GPUs per pod.
            pods: All other settings of the pods that the job creates.
            existing_pods: The pods that the mesh consists of, if the job creates none.

        Raises:
            ConfigError: The name is invalid or used already, a number is invalid, or existing pods
                are combined with arguments for new ones.
        """
        self._check_origin_of_pods(name, existing_pods is not None)
        options: dict[str, Any]
        if existing_pods is None:
            image = None if image_spec is None else image_spec.to_json()
            options = {"image_spec": image, **(pods or PodOptions()).to_json()}
        elif image_spec is None and pods is None:
            options = existing_pods.to_json()
        else:
            raise ConfigError(
                f"mesh {name!r} has existing_pods, so the job creates no pods for it: leave out "
                "image_spec and pods"
            )
        mesh = MeshSpec(name, hosts, cpus, memory, gpus, options)
        self._spec = replace(self._spec, meshes=(*self._spec.meshes, mesh))
        return self

    def _check_origin_of_pods(self, name: str, is_existing: bool) -> None:
        options = self._spec.options
        if options["mesh_job"] is not None:
            raise ConfigError(
                f"MeshJob {options['mesh_job']} defines its own meshes: do not add any"
            )
        if is_existing != (options["credentials_secret"] is not None):
            raise ConfigError(
                f"mesh {name!r}: existing pods need both existing_pods and the credentials_secret "
                "in the job's KubernetesOptions; pods that the job creates need neither"
            )

    @staticmethod
    def new_secret(name: str) -> str:
        """Return a new Secret as YAML, by which existing pods and jobs authenticate each other.

        Its key `worker` is for the pods, which run
        `python -m mesh_jobs.worker --secret env:MESH_WORKER_SECRET`. Its key `controller` is for
        jobs.

        Args:
            name: The name of the Secret, for `KubernetesOptions.credentials_secret`.
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

    def role(self, subject: str | None = None) -> str:
        """Return the role that is needed to apply this job, as YAML.

        The role is limited to the namespace. If the job watches nodes, there is a ClusterRole, too.

        Args:
            subject: To whom the role is bound by a RoleBinding in the same YAML: `user:NAME`,
                `group:NAME` or `serviceaccount:NAME`. By default there is no binding.

        Raises:
            ConfigError: The subject has another form.
        """
        return role(self._spec.options, subject)

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


def _has_only_options_of_existing_pods(options: KubernetesOptions) -> bool:
    has_default_grace = options.termination_grace_s == TERMINATION_GRACE_S
    return has_default_grace and options.evictions_max is None and options.queue is None
