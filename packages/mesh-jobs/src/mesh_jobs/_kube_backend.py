"""The backend of Kubernetes: it needs a namespace and a few rights there, and no operator."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import yaml

from mesh_jobs._backend import Backend
from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._kube_api import KubeApi, KubeConflict, KubeMissing
from mesh_jobs._kube_hosts import condition, host, is_going, latest
from mesh_jobs._kube_manifests import (
    MESH_LABEL,
    ORDER_LABEL,
    RANK_LABELS,
    mesh_name,
    secret,
    secret_keys,
    secret_name,
    service,
    workloads,
)
from mesh_jobs._kube_pod import CONTAINER
from mesh_jobs._order import Order
from mesh_jobs._report import HostReport, Phase, Report, Ticket

__all__ = ["KubernetesBackend"]

_PLURALS = {"job": "jobs", "statefulset": "statefulsets", "pods": "pods"}
_LOOK_S = 0.1
# Beyond the grace of its pods, which ends the longest wait for a worker.
_GONE_S = 60.0
_NO_SECRET = base64.b64encode(b"made when it is applied").decode()

Object = dict[str, Any]


class KubernetesBackend(Backend):
    """Makes a workload for each mesh of an order, and finds them by the order's label."""

    poll_s: ClassVar[float] = 1.0

    @property
    def _workload(self) -> str:
        return str(self.options["workload"])

    def _api(self) -> KubeApi:
        given = self.options
        return KubeApi(given["namespace"], given.get("kubeconfig"), given.get("cluster_context"))

    def plan(self, order: Order) -> str:
        """Gives the manifests, as YAML; the server checks them too where it was asked to."""
        keys = {key: _NO_SECRET for key, _ in secret_keys(order)}
        made = [("secrets", secret(order, keys)), *self._of_meshes(order)]
        if self.options.get("is_checked_by_server"):
            api = self._api()
            for plural, body in made:
                api.create(plural, body, is_dry_run=True)
        return "---\n".join(yaml.safe_dump(body, sort_keys=False) for _, body in made)

    def _of_meshes(self, order: Order) -> list[tuple[str, Object]]:
        made: list[tuple[str, Object]] = []
        for mesh in order.spec.meshes:
            made.append(("services", service(order, mesh)))
            made += [
                (_PLURALS[self._workload], one) for one in workloads(order, mesh, self._workload)
            ]
        return made

    def allocate(self, order: Order) -> Ticket:
        """Makes what is not there yet."""
        api = self._api()
        bodies = self._of_meshes(order)
        if not _is_there(api, "secrets", secret_name(order)):
            contents = {
                key: base64.b64encode(order.worker(mesh.name, "env:RANK").secret).decode()
                for key, mesh in secret_keys(order)
            }
            _ensure(api, "secrets", secret(order, contents))
        for plural, body in bodies:
            _ensure(api, plural, body)
        self._bind(api, order.id)
        return self._ticket(order)

    def _bind(self, api: KubeApi, order_id: str) -> None:
        """Makes the workloads the owners of all else: when the last one goes, nothing is left."""
        owners = [
            {
                "apiVersion": "batch/v1" if self._workload == "job" else "apps/v1",
                "kind": "Job" if self._workload == "job" else "StatefulSet",
                "name": one["metadata"]["name"],
                "uid": one["metadata"]["uid"],
            }
            for one in api.list(_PLURALS[self._workload], order_id, ORDER_LABEL)
        ]
        if self._workload == "pods":
            owners = [{**one, "apiVersion": "v1", "kind": "Pod"} for one in owners]
        for plural in ("secrets", "services"):
            for one in api.list(plural, order_id, ORDER_LABEL):
                body = {"metadata": {"ownerReferences": owners}}
                api.patch(plural, one["metadata"]["name"], body)

    def _ticket(self, order: Order) -> Ticket:
        return {
            "order": order.id,
            "namespace": self.options["namespace"],
            "workload": self._workload,
            "meshes": [
                {
                    "name": mesh.name,
                    "hosts": mesh.hosts,
                    "port": mesh.options["port"],
                    "object": mesh_name(order, mesh),
                }
                for mesh in order.spec.meshes
            ],
        }

    def find(self, order: Order) -> Ticket | None:
        """Gives the ticket; what there is of the order is found by its label."""
        return self._ticket(order)

    def report(self, ticket: Ticket) -> Report:
        """Looks at the pods, and at what made them."""
        api, kind = self._api(), ticket["workload"]
        pods = api.list("pods", ticket["order"], ORDER_LABEL)
        makers = {}
        if kind != "pods":
            found = api.list(_PLURALS[kind], ticket["order"], ORDER_LABEL)
            makers = {one["metadata"]["name"]: one for one in found}
        hosts = [one for mesh in ticket["meshes"] for one in _hosts(kind, mesh, pods, makers)]
        return _summed(hosts)

    def release(self, ticket: Ticket) -> None:
        """Deletes everything of the order, and waits until no pod is left."""
        api, order_id = self._api(), ticket["order"]
        for plural in (_PLURALS[ticket["workload"]], "services", "secrets"):
            for one in api.list(plural, order_id, ORDER_LABEL):
                api.delete(plural, one["metadata"]["name"])
        _end(api, order_id, lambda pod: True)

    def resize(self, ticket: Ticket, order: Order) -> Ticket:
        """Changes the size of workloads; the last pods come or go."""
        api = self._api()
        if self._workload == "pods":
            self.allocate(order)
        for mesh in order.spec.meshes if self._workload != "pods" else ():
            size = {"replicas": mesh.hosts}
            if self._workload == "job":
                size = {"completions": mesh.hosts, "parallelism": mesh.hosts}
            api.patch(_PLURALS[self._workload], mesh_name(order, mesh), {"spec": size})
        sizes = {mesh.name: mesh.hosts for mesh in order.spec.meshes}

        def is_too_many(pod: Object) -> bool:
            return _rank(self._workload, pod) >= sizes[pod["metadata"]["labels"][MESH_LABEL]]

        _end(api, order.id, is_too_many)
        return self._ticket(order)

    def logs(self, ticket: Ticket, mesh: str, rank: int, lines: int) -> str:
        """Reads the log of the pod that counts; of its last run, when it runs no more."""
        api = self._api()
        pods = [
            pod
            for pod in api.list("pods", ticket["order"], ORDER_LABEL)
            if pod["metadata"]["labels"].get(MESH_LABEL) == mesh
            and _rank(ticket["workload"], pod) == rank
        ]
        pod = latest(pods)
        if pod is None:
            return ""
        name = pod["metadata"]["name"]
        statuses = pod["status"].get("containerStatuses") or []
        worker: Object = next((one for one in statuses if one["name"] == CONTAINER), {})
        is_previous = "waiting" in (worker.get("state") or {}) and bool(worker.get("lastState"))
        try:
            return api.log(name, CONTAINER, lines, is_previous)
        except SchedulerUnreachable:
            raise
        except JobError:
            return ""  # It has never begun: there is nothing that it could have said.

    def gateway(self, ticket: Ticket) -> str | None:
        """Gives the worker that was named as the way into the cluster."""
        named = self.options.get("attach_to")
        return None if named is None else str(named)


def _end(api: KubeApi, order_id: str, is_chosen: Callable[[Object], bool]) -> None:
    """Deletes some pods of an order, and waits until they are gone.

    Raises:
        SchedulerUnreachable: They do not end, or the server does not answer.
    """
    end = time.monotonic() + _GONE_S
    while left := [pod for pod in api.list("pods", order_id, ORDER_LABEL) if is_chosen(pod)]:
        for pod in left:
            if not is_going(pod):
                api.delete("pods", pod["metadata"]["name"])
        if time.monotonic() >= end:
            names = ", ".join(str(one["metadata"]["name"]) for one in left[:4])
            raise SchedulerUnreachable(
                f"{len(left)} pods do not end, such as {names}: their nodes do not answer: call it "
                "again later"
            )
        time.sleep(_LOOK_S)


def _is_there(api: KubeApi, plural: str, name: str) -> bool:
    try:
        api.get(plural, name)
    except KubeMissing:
        return False
    return True


def _ensure(api: KubeApi, plural: str, body: Object) -> None:
    try:
        api.create(plural, body)
    except KubeConflict:
        return  # The name has the order's id in it: it is ours, of an earlier try.


def _rank(kind: str, pod: Object) -> int:
    return int(pod["metadata"]["labels"].get(RANK_LABELS[kind], -1))


def _hosts(
    kind: str, mesh: Object, pods: Sequence[Object], makers: dict[str, Object]
) -> list[HostReport]:
    mine = [pod for pod in pods if pod["metadata"]["labels"].get(MESH_LABEL) == mesh["name"]]
    ended, waits = "", ""
    if kind != "pods":
        maker = makers.get(mesh["object"])
        if maker is None:
            ended = f"{kind} {mesh['object']} was deleted"
        elif kind == "job":
            ended, waits = _state_of_job(maker)
    given_up = _given_up(makers.get(mesh["object"], {})) if kind == "job" else set()
    by_rank: dict[int, list[Object]] = {}
    for pod in mine:
        by_rank.setdefault(_rank(kind, pod), []).append(pod)
    if waits and not mine:
        return [
            HostReport(mesh["name"], rank, Phase.PENDING, reason=waits)
            for rank in range(mesh["hosts"])
        ]
    return [
        host(
            mesh["name"],
            rank,
            by_rank.get(rank, []),
            mesh["port"],
            ended or ("its pods have failed too often" if rank in given_up else ""),
            kind != "pods",
        )
        for rank in range(mesh["hosts"])
    ]


def _state_of_job(job: Object) -> tuple[str, str]:
    """Why a job has ended, and why it waits as a whole; each empty when it is not so."""
    name = job["metadata"]["name"]
    for type in ("Failed", "Complete"):
        if found := condition(job, type):
            told = found.get("message") or found.get("reason", "")
            what = "failed" if type == "Failed" else "is complete: no program used its workers"
            return f"job {name} {what}: {told}".rstrip(": "), ""
    if job["spec"].get("suspend"):
        return "", f"job {name} is suspended: it waits in a queue"
    return "", ""


def _given_up(job: Object) -> set[int]:
    """The indexes whose pods have failed too often, told as `1,3-5`."""
    found: set[int] = set()
    for part in filter(None, (job.get("status") or {}).get("failedIndexes", "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _summed(hosts: Sequence[HostReport]) -> Report:
    states = {one.state for one in hosts}
    reason = next((one.reason for one in hosts if one.reason), "")
    if states <= {Phase.ENDED}:
        return Report(Phase.ENDED, reason, tuple(hosts))
    if Phase.PENDING in states:
        waits = next(one.reason for one in hosts if one.state is Phase.PENDING)
        return Report(Phase.PENDING, waits, tuple(hosts))
    return Report(Phase.RUNNING, "", tuple(hosts))
