"""The Kubernetes backend, which needs a namespace and a few permissions, but no operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import yaml

from mesh_jobs._backend.attachment import Attachment
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.order import Order
from mesh_jobs._backend.report import HostDraining, JobEvent, Report, Ticket
from mesh_jobs._errors import JobError, NotSupported, SchedulerUnreachable
from mesh_jobs._kube.attached_pods import (
    attached_follow,
    attached_host_pods,
    attached_pods,
    attached_report,
    attached_ticket,
    attachment,
    is_attaching,
    set_hosts,
)
from mesh_jobs._kube.events import Place, events_of
from mesh_jobs._kube.eviction_notices import leaving
from mesh_jobs._kube.follower import delete_pods, follow_objects
from mesh_jobs._kube.manifests import (
    KINDS,
    MESH_LABEL,
    ORDER_LABEL,
    PLURALS,
    manifests,
    mesh_name,
    secret,
    secret_keys,
    secret_name,
    size,
    ticket_of,
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
    """Backend that creates a workload for each mesh, and finds objects by the order's label."""

    # Watches report changes; polling only covers events that they may have missed.
    poll_s: ClassVar[float] = 30.0

    @property
    def _workload(self) -> str:
        return str(self.options["workload"])

    def _api(self) -> KubeApi:
        given = self.options
        return KubeApi(given["namespace"], given.get("kubeconfig"), given.get("cluster_context"))

    def plan(self, order: Order) -> str:
        """Return the manifests as YAML, validated by the API server if requested."""
        if is_attaching(order.spec):
            named = self.options.get("mesh_job")
            return f"# creates nothing: attaches to {f'MeshJob {named}' if named else 'pods'}\n"
        keys = {key: _NO_SECRET for key, _ in secret_keys(order)}
        made = [("secrets", secret(order, keys)), *self._made(order)]
        if self.options.get("is_checked_by_server"):
            api = self._api()
            self._check_there(api, order)
            for plural, body in made:
                api.create(plural, body, is_dry_run=True)
        return "---\n".join(yaml.safe_dump(body, sort_keys=False) for _, body in made)

    def _made(self, order: Order) -> list[tuple[str, Object]]:
        return [(plural, body) for _, plural, body in manifests(order, self._workload)]

    def attachment(self, spec: JobSpec) -> Attachment | None:
        """Return the pods of a MeshJob or of another controller, if the spec refers to them."""
        return attachment(self._api(), spec) if is_attaching(spec) else None

    def allocate(self, order: Order) -> Ticket:
        """Create the objects that do not exist yet."""
        api = self._api()
        if is_attaching(order.spec):
            return attached_ticket(api, order)
        self._check_there(api, order)
        bodies = self._made(order)
        if not _is_there(api, "secrets", secret_name(order)):
            contents = {
                key: encoded(order.worker(mesh.name, "env:RANK").secret)
                for key, mesh in secret_keys(order)
            }
            _ensure(api, "secrets", secret(order, contents))
        for plural, body in bodies:
            _ensure(api, plural, body)
        self._bind(api, order.id)
        return self._ticket(order)

    def _check_there(self, api: KubeApi, order: Order) -> None:
        """Reject a workload that the cluster does not support, before anything is created."""
        if self._workload != "jobset":
            return
        try:
            api.list(PLURALS[self._workload], _selector(order.id))
        except KubeNotFound as error:
            raise JobError(
                f"the cluster has no {PLURALS[self._workload]}: install their controller, or use "
                "workload='job'"
            ) from error

    def _bind(self, api: KubeApi, order_id: str) -> None:
        """Make the workloads own all other objects, which are thus deleted with the last one."""
        version, kind = KINDS[self._workload]
        owners = [
            {
                "apiVersion": version,
                "kind": kind,
                "name": one["metadata"]["name"],
                "uid": one["metadata"]["uid"],
            }
            for one in api.list(PLURALS[self._workload], _selector(order_id))
        ]
        for plural in ("secrets", "services"):
            for one in api.list(plural, _selector(order_id)):
                body = {"metadata": {"ownerReferences": owners}}
                api.patch(plural, one["metadata"]["name"], body)

    def _ticket(self, order: Order) -> Ticket:
        return ticket_of(order, self._workload, str(self.options["namespace"]))

    def find(self, order: Order) -> Ticket | None:
        """Return the ticket; objects of the order are found by its label."""
        if is_attaching(order.spec):
            return None
        return self._ticket(order)

    def report(self, ticket: Ticket) -> Report:
        """Return a report from the pods and their workloads."""
        if ticket.get("attached"):
            return attached_report(self._api(), ticket)
        api, selector = self._api(), _selector(ticket["order"])
        pods, plural = api.list("pods", selector), PLURALS[ticket["workload"]]
        return report_of(ticket, pods, api.list(plural, selector) if plural != "pods" else [])

    @contextmanager
    def follow(self, ticket: Ticket) -> Iterator[Follower]:
        """Watch the pods and their workloads."""
        if ticket.get("attached"):
            with attached_follow(self._api(), ticket) as follower:
                yield follower
            return
        selector, plural = _selector(ticket["order"]), PLURALS[ticket["workload"]]
        watched = [("pods", selector), *([(plural, selector)] if plural != "pods" else [])]

        def reading(known: Sequence[list[Object]]) -> Report:
            return report_of(ticket, known[0], known[1] if len(known) > 1 else [])

        with follow_objects(self._api(), watched, reading, lambda: self.report(ticket)) as follower:
            yield follower

    def release(self, ticket: Ticket) -> None:
        """Delete all objects of the order, and wait until no pod is left.

        Objects of other owners are not deleted.
        """
        stop_forward(ticket["order"])
        if ticket.get("attached"):
            return
        api, selector = self._api(), _selector(ticket["order"])
        for plural in (PLURALS[ticket["workload"]], "services", "secrets"):
            for one in api.list(plural, selector):
                api.delete(plural, one["metadata"]["name"])
        delete_pods(api, selector, lambda pod: True)

    def resize(self, ticket: Ticket, order: Order) -> Ticket:
        """Change the size of workloads; pods are added or removed at the end."""
        api = self._api()
        if ticket.get("attached"):
            set_hosts(api, order)
            return attached_ticket(api, order)
        if self._workload == "jobset":
            raise NotSupported(
                "the size of a JobSet cannot change: kill the job, and apply it again"
            )
        if self._workload == "pods":
            self.allocate(order)
        for mesh in order.spec.meshes if self._workload != "pods" else ():
            body = {"spec": size(self._workload, mesh.hosts)}
            api.patch(PLURALS[self._workload], mesh_name(order, mesh), body)
        sizes = {mesh.name: mesh.hosts for mesh in order.spec.meshes}

        def is_too_many(pod: Object) -> bool:
            return rank_of(self._workload, pod) >= sizes[pod["metadata"]["labels"][MESH_LABEL]]

        delete_pods(api, _selector(order.id), is_too_many)
        return self._ticket(order)

    def logs(self, ticket: Ticket, mesh: str, rank: int, lines: int) -> str:
        """Return the log of the host's current pod, or of its previous run if it is restarting."""
        api = self._api()
        pods = host_pods(ticket, self._pods(ticket), mesh, rank)
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

    def events(self, ticket: Ticket) -> Sequence[JobEvent]:
        """Return the events that the cluster reports for the pods and their workloads."""
        api, pods = self._api(), self._pods(ticket)
        places: dict[str, Place] = {}
        names: dict[str, str | None] = {}
        for host in self.report(ticket).hosts:
            found = host_pods(ticket, pods, host.mesh, host.rank)
            places |= {one["metadata"]["name"]: (host.mesh, host.rank) for one in found}
        if ticket.get("attached"):
            names = {ticket["mesh_job"]: None} if ticket["mesh_job"] else {}
        else:
            names = {mesh["object"]: mesh["name"] for mesh in ticket["meshes"]}
        return events_of(names, places, api.list("events"), pods)

    def leaving(self, ticket: Ticket) -> Sequence[HostDraining]:
        """Return the hosts whose pods are being deleted, evicted or preempted."""
        pods = self._pods(ticket)
        return [
            one
            for mesh in ticket["meshes"]
            for rank in range(mesh["hosts"])
            for one in leaving(mesh["name"], rank, host_pods(ticket, pods, mesh["name"], rank))
        ]

    def gateway(self, ticket: Ticket) -> str | None:
        """Return the configured gateway to the cluster, or one that is created for the job.

        If no worker can be reached directly, or if the options request it, a gateway through the
        API server is created.
        """
        named, asked = self.options.get("attach_to"), self.options.get("port_forward")
        if named is not None or asked is False:
            return None if named is None else str(named)
        api, order_id = self._api(), ticket["order"]
        if not asked and not is_forwarded(order_id):
            up = [one.address for one in self.report(ticket).hosts if one.address]
            if not up or is_any_reachable(up):
                return None
        return forward_to(order_id, api, lambda: self._workers(ticket))

    def _workers(self, ticket: Ticket) -> list[tuple[str, int]]:
        """Return the pods and the ports of the workers that are up."""
        up = {one.address for one in self.report(ticket).hosts if one.address}
        ports = {mesh["port"] for mesh in ticket["meshes"]}
        return [
            (pod["metadata"]["name"], port)
            for pod in self._pods(ticket)
            for port in ports
            if address_of(pod, port) in up
        ]

    def _pods(self, ticket: Ticket) -> list[Object]:
        api = self._api()
        if ticket.get("attached"):
            return attached_pods(api, ticket)
        return api.list("pods", _selector(ticket["order"]))

    def control_gateway(self, ticket: Ticket) -> str | None:
        """Return the address of the configured gateway's control service: the next port."""
        named = self.options.get("attach_to")
        if named is None:
            return None
        name, _, port = str(named).partition("://")[2].rpartition(":")
        return f"grpcs://{name}:{control_port(int(port))}"


def host_pods(ticket: Ticket, pods: Sequence[Object], mesh: str, rank: int) -> list[Object]:
    """Return all pods that are or were the given host."""
    if ticket.get("attached"):
        return attached_host_pods(ticket, pods, mesh, rank)
    kind = ticket["workload"]
    mine = [pod for pod in pods if pod["metadata"]["labels"].get(MESH_LABEL) == mesh]
    return [pod for pod in mine if rank_of(kind, pod) == rank]


def _selector(order_id: str) -> str:
    return f"{ORDER_LABEL}={order_id}"


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
        return  # The name contains the order id, so an earlier attempt created the object.
