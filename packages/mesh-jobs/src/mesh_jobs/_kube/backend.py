"""The Kubernetes backend, which needs a namespace and a few permissions, but no operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import yaml

from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.attachment import Attachment
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.report import Allocation, HostDraining, JobEvent, Report
from mesh_jobs._errors import JobError, NotSupported, SchedulerUnreachable
from mesh_jobs._kube.attached_pods import (
    attached_allocation,
    attached_follow,
    attached_host_pods,
    attached_pods,
    attached_report,
    attachment,
    is_attaching,
    set_hosts,
)
from mesh_jobs._kube.events import Place, events_of
from mesh_jobs._kube.eviction_notices import leaving
from mesh_jobs._kube.follower import Selection, delete_pods, follow_objects
from mesh_jobs._kube.manifests import (
    ALLOCATION_LABEL,
    BUDGETS,
    KINDS,
    MESH_LABEL,
    PLURALS,
    allocation_of,
    budget_size,
    manifests,
    mesh_name,
    secret,
    secret_keys,
    secret_name,
    size,
)
from mesh_jobs._kube.pod_status import address_of, latest, worker_of
from mesh_jobs._kube.pod_template import CONTAINER, control_port
from mesh_jobs._kube.report import rank_of, report_of
from mesh_jobs._kube.secret import encoded
from mesh_jobs._kube_api.client import KubeApi, KubeConflict, KubeNotFound
from mesh_jobs._kube_api.port_forward import (
    forward_to,
    is_any_reachable,
    is_forwarded,
    stop_forward,
)
from mesh_jobs._spec import JobSpec

__all__ = ["KubernetesBackend"]

_NO_SECRET = encoded("created when the job is applied")

Object = dict[str, Any]


class KubernetesBackend(Backend):
    """Backend that creates a workload for each mesh, and finds objects by a label."""

    # Watches report changes; polling only covers events that they may have missed.
    poll_s: ClassVar[float] = 30.0

    @property
    def _workload(self) -> str:
        return str(self.options["workload"])

    @property
    def _owned(self) -> tuple[str, ...]:
        """The plural names of the objects that the workloads own."""
        budgets = (BUDGETS,) if self.options.get("evictions_max") is not None else ()
        return (*budgets, "services", "secrets")

    @property
    def _has_nodes(self) -> bool:
        return bool(self.options.get("watch_nodes"))

    def _api(self) -> KubeApi:
        given = self.options
        return KubeApi(given["namespace"], given.get("kubeconfig"), given.get("cluster_context"))

    def plan(self, request: AllocationRequest) -> str:
        """Return the manifests as YAML, validated by the API server if requested."""
        if is_attaching(request.spec):
            mesh_job = self.options.get("mesh_job")
            return (
                f"# creates nothing: attaches to {f'MeshJob {mesh_job}' if mesh_job else 'pods'}\n"
            )
        keys = {key: _NO_SECRET for key, _ in secret_keys(request)}
        made = [("secrets", secret(request, keys)), *self._made(request)]
        if self.options.get("is_checked_by_server"):
            api = self._api()
            self._check_workload(api, request)
            for plural, body in made:
                api.create(plural, body, is_dry_run=True)
        return "---\n".join(yaml.safe_dump(body, sort_keys=False) for _, body in made)

    def _made(self, request: AllocationRequest) -> list[tuple[str, Object]]:
        return [(plural, body) for _, plural, body in manifests(request, self._workload)]

    def attachment(self, spec: JobSpec) -> Attachment | None:
        """Return the pods of a MeshJob or of another controller, if the spec refers to them."""
        return attachment(self._api(), spec) if is_attaching(spec) else None

    def allocate(self, request: AllocationRequest) -> Allocation:
        """Create the objects that do not exist yet."""
        api = self._api()
        if self._has_nodes:
            # Reject a user without this permission, because the job would miss the notices of
            # nodes.
            api.cluster_wide().list("nodes")
        if is_attaching(request.spec):
            return attached_allocation(api, request)
        self._check_workload(api, request)
        bodies = self._made(request)
        if not _is_there(api, "secrets", secret_name(request)):
            contents = {
                key: encoded(request.worker(mesh.name, "env:RANK").secret)
                for key, mesh in secret_keys(request)
            }
            _ensure(api, "secrets", secret(request, contents))
        for plural, body in bodies:
            _ensure(api, plural, body)
        self._bind(api, request.id)
        return self._allocation(request)

    def _check_workload(self, api: KubeApi, request: AllocationRequest) -> None:
        """Reject a workload that the cluster does not support, before anything is created."""
        if self._workload != "jobset":
            return
        try:
            api.list(PLURALS[self._workload], _selector(request.id))
        except KubeNotFound as error:
            raise JobError(
                f"the cluster has no {PLURALS[self._workload]}: install their controller, or use "
                "workload='job'"
            ) from error

    def _bind(self, api: KubeApi, allocation_id: str) -> None:
        """Make the workloads own all other objects, which are thus deleted with the last one."""
        version, kind = KINDS[self._workload]
        owners = [
            {
                "apiVersion": version,
                "kind": kind,
                "name": one["metadata"]["name"],
                "uid": one["metadata"]["uid"],
            }
            for one in api.list(PLURALS[self._workload], _selector(allocation_id))
        ]
        for plural in self._owned:
            for one in api.list(plural, _selector(allocation_id)):
                body = {"metadata": {"ownerReferences": owners}}
                api.patch(plural, one["metadata"]["name"], body)

    def _allocation(self, request: AllocationRequest) -> Allocation:
        return allocation_of(request, self._workload, str(self.options["namespace"]))

    def find(self, request: AllocationRequest) -> Allocation | None:
        """Return the allocation; its objects are found by their label."""
        if is_attaching(request.spec):
            return None
        return self._allocation(request)

    def report(self, allocation: Allocation) -> Report:
        """Return a report from the pods and their workloads."""
        if allocation.get("attached"):
            return attached_report(self._api(), allocation)
        api, selector = self._api(), _selector(allocation["id"])
        pods, plural = api.list("pods", selector), PLURALS[allocation["workload"]]
        return report_of(allocation, pods, api.list(plural, selector) if plural != "pods" else [])

    @contextmanager
    def follow(self, allocation: Allocation) -> Iterator[Follower]:
        """Watch the pods and their workloads."""
        has_nodes = self._has_nodes
        if allocation.get("attached"):
            with attached_follow(self._api(), allocation, has_nodes=has_nodes) as follower:
                yield follower
            return
        kind, selector = allocation["workload"], _selector(allocation["id"])

        def place(pod: Mapping[str, Any]) -> tuple[str, int]:
            return pod["metadata"]["labels"][MESH_LABEL], rank_of(kind, pod)

        watched = [Selection("pods", selector, place)]
        if kind != "pods":
            watched.append(Selection(PLURALS[kind], selector))

        def reading(known: Sequence[list[Object]]) -> Report:
            return report_of(allocation, known[0], known[1] if len(known) > 1 else [])

        def fetch() -> Report:
            return self.report(allocation)

        with follow_objects(self._api(), watched, reading, fetch, has_nodes=has_nodes) as follower:
            yield follower

    def release(self, allocation: Allocation) -> None:
        """Delete all objects of the allocation, and wait until no pod is left.

        Objects of other owners are not deleted.
        """
        stop_forward(allocation["id"])
        if allocation.get("attached"):
            return
        api, selector = self._api(), _selector(allocation["id"])
        for plural in (PLURALS[allocation["workload"]], *self._owned):
            for one in api.list(plural, selector) if plural != "pods" else ():
                api.delete(plural, one["metadata"]["name"])
        delete_pods(api, selector, lambda pod: True)

    def resize(self, allocation: Allocation, request: AllocationRequest) -> Allocation:
        """Change the size of workloads; pods are added or removed at the end."""
        api = self._api()
        if allocation.get("attached"):
            set_hosts(api, request)
            return attached_allocation(api, request)
        if self._workload == "jobset":
            raise NotSupported(
                "the size of a JobSet cannot change: kill the job, and apply it again"
            )
        if self.options.get("queue") is not None:
            raise NotSupported(
                f"queue {self.options['queue']!r} admitted the job with its size: kill the job, "
                "and apply it again"
            )
        if self._workload == "pods":
            self.allocate(request)
        for mesh in request.spec.meshes:
            if self._workload != "pods":
                body = {"spec": size(self._workload, mesh.hosts)}
                api.patch(PLURALS[self._workload], mesh_name(request, mesh), body)
            if BUDGETS in self._owned:
                budget = {"spec": budget_size(request, mesh)}
                api.patch(BUDGETS, mesh_name(request, mesh), budget)
        sizes = {mesh.name: mesh.hosts for mesh in request.spec.meshes}

        def is_too_many(pod: Object) -> bool:
            return rank_of(self._workload, pod) >= sizes[pod["metadata"]["labels"][MESH_LABEL]]

        delete_pods(api, _selector(request.id), is_too_many)
        return self._allocation(request)

    def logs(self, allocation: Allocation, mesh: str, rank: int, lines: int) -> str:
        """Return the log of the host's current pod, or of its previous run if it is restarting."""
        api = self._api()
        pods = host_pods(allocation, self._pods(allocation), mesh, rank)
        pod = latest(pods)
        if pod is None:
            return ""
        name = pod["metadata"]["name"]
        worker = worker_of(pod)
        container = worker.get("name", CONTAINER)
        is_previous = "waiting" in (worker.get("state") or {}) and bool(worker.get("lastState"))
        try:
            return api.log(name, container, lines, is_previous)
        except SchedulerUnreachable:
            raise
        except JobError:
            return ""  # The container has never started, so it has no output.

    def events(self, allocation: Allocation) -> Sequence[JobEvent]:
        """Return the events that the cluster reports for the pods and their workloads."""
        api, pods = self._api(), self._pods(allocation)
        places: dict[str, Place] = {}
        names: dict[str, str | None] = {}
        for host in self.report(allocation).hosts:
            found = host_pods(allocation, pods, host.mesh, host.rank)
            places |= {one["metadata"]["name"]: (host.mesh, host.rank) for one in found}
        if allocation.get("attached"):
            names = {allocation["mesh_job"]: None} if allocation["mesh_job"] else {}
        else:
            names = {mesh["object"]: mesh["name"] for mesh in allocation["meshes"]}
        return events_of(names, places, api.list("events"), pods)

    def leaving(self, allocation: Allocation) -> Sequence[HostDraining]:
        """Return the hosts that are being deleted, evicted or preempted, or whose nodes drain."""
        pods = self._pods(allocation)
        nodes = self._nodes() if self._has_nodes else {}
        return [
            one
            for mesh in allocation["meshes"]
            for rank in range(mesh["hosts"])
            for one in leaving(
                mesh["name"], rank, host_pods(allocation, pods, mesh["name"], rank), nodes
            )
        ]

    def _nodes(self) -> dict[str, Object]:
        """Return the nodes of the cluster by name."""
        found = self._api().cluster_wide().list("nodes")
        return {one["metadata"]["name"]: one for one in found}

    def gateway(self, allocation: Allocation) -> str | None:
        """Return the configured gateway to the cluster, or one that is created for the job.

        If no worker can be reached directly, or if the options request it, a gateway through the
        API server is created.
        """
        attach_to, port_forward = self.options.get("attach_to"), self.options.get("port_forward")
        if attach_to is not None or port_forward is False:
            return None if attach_to is None else str(attach_to)
        api, allocation_id = self._api(), allocation["id"]
        if not port_forward and not is_forwarded(allocation_id):
            up = [one.address for one in self.report(allocation).hosts if one.address]
            if not up or is_any_reachable(up):
                return None
        return forward_to(allocation_id, api, lambda: self._workers(allocation))

    def _workers(self, allocation: Allocation) -> list[tuple[str, int]]:
        """Return the pods and the ports of the workers that are up."""
        up = {one.address for one in self.report(allocation).hosts if one.address}
        ports = {mesh["port"] for mesh in allocation["meshes"]}
        return [
            (pod["metadata"]["name"], port)
            for pod in self._pods(allocation)
            for port in ports
            if address_of(pod, port) in up
        ]

    def _pods(self, allocation: Allocation) -> list[Object]:
        api = self._api()
        if allocation.get("attached"):
            return attached_pods(api, allocation)
        return api.list("pods", _selector(allocation["id"]))

    def control_gateway(self, allocation: Allocation) -> str | None:
        """Return the address of the configured gateway's control service: the next port."""
        attach_to = self.options.get("attach_to")
        if attach_to is None:
            return None
        name, _, port = str(attach_to).partition("://")[2].rpartition(":")
        return f"grpcs://{name}:{control_port(int(port))}"


def host_pods(allocation: Allocation, pods: Sequence[Object], mesh: str, rank: int) -> list[Object]:
    """Return all pods that are or were the given host."""
    if allocation.get("attached"):
        return attached_host_pods(allocation, pods, mesh, rank)
    kind = allocation["workload"]
    mine = [pod for pod in pods if pod["metadata"]["labels"].get(MESH_LABEL) == mesh]
    return [pod for pod in mine if rank_of(kind, pod) == rank]


def _selector(allocation_id: str) -> str:
    return f"{ALLOCATION_LABEL}={allocation_id}"


def _is_there(api: KubeApi, plural: str, name: str) -> bool:
    try:
        api.get(plural, name)
    except KubeNotFound:
        return False
    return True


def _ensure(api: KubeApi, plural: str, body: Object) -> None:
    try:
        api.create(plural, body)
    except KubeConflict:
        return  # The name contains the allocation id, so an earlier attempt created the object.
