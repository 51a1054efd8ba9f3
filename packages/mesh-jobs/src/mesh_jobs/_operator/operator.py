"""The operator, which reconciles all MeshJobs whenever one of them or an owned object changes."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from typing import Any

from mesh_jobs._errors import JobError
from mesh_jobs._kube.manifests import ALLOCATION_LABEL
from mesh_jobs._kube.mesh_job import MESH_JOB_LABEL, allocation_id
from mesh_jobs._kube_api.client import KubeApi
from mesh_jobs._kube_api.informer import KubeInformer
from mesh_jobs._operator.leader_election import Leadership
from mesh_jobs._operator.reconciler import ObservedState, reconcile

__all__ = ["Operator"]

# The interval of reconciliation without changes, for expired leases and retried requests.
_RESYNC_S = 5.0
# Changes come in bursts and are handled in batches. The pause is a multiple of the work time.
_BATCH_WINDOW_S = 0.1
_REST_PER_WORK = 4.0
_RETRY_FIRST_S = 0.5
_RETRY_MAX_S = 60.0

Object = dict[str, Any]


class Operator:
    """Operator that reconciles MeshJobs from their observed state only, and stores no state itself.

    Args:
        api: The API client for the namespace of the MeshJobs; an empty namespace means all.
        leadership: The leader election of this operator; a standby only waits.
        changed: An event that is set when something must be reconciled.
    """

    def __init__(self, api: KubeApi, leadership: Leadership, changed: threading.Event) -> None:
        self._api = api
        self._leadership = leadership
        self._changed = changed
        # The time and the pause of the next attempt, and the last error, of each MeshJob by uid.
        self._retries: dict[str, tuple[float, float, str]] = {}
        self._last_error = ""

    def run(self, ended: threading.Event) -> None:
        """Run until the event is set."""
        self._leadership.start()
        kinds = ("meshjobs", "pods", "jobs", "statefulsets")
        selectors = {"meshjobs": ""}
        informers = {
            kind: KubeInformer(
                self._api, kind, selectors.get(kind, MESH_JOB_LABEL), self._changed.set
            )
            for kind in kinds
        }
        try:
            while not ended.is_set():
                began = time.monotonic()
                if self._leadership.is_held:
                    self._reconcile_all(informers)
                worked_s = time.monotonic() - began
                ended.wait(max(_BATCH_WINDOW_S, worked_s * _REST_PER_WORK))
                self._changed.wait(_RESYNC_S)
                self._changed.clear()
        finally:
            self._leadership.end()
            for informer in informers.values():
                informer.close()

    def _reconcile_all(self, informers: dict[str, KubeInformer]) -> None:
        """Reconcile each MeshJob once."""
        try:
            known = {kind: informer.objects() for kind, informer in informers.items()}
        except JobError as error:
            self._log_once(str(error))
            return
        self._log_once("")
        pods = _by_allocation(known["pods"])
        workloads = _by_allocation([*known["jobs"], *known["statefulsets"]])
        for mesh_job in known["meshjobs"]:
            if not self._leadership.is_held:
                return
            mine = allocation_id(mesh_job)
            self._reconcile(mesh_job, ObservedState(pods[mine], workloads[mine]))

    def _reconcile(self, mesh_job: Object, observed: ObservedState) -> None:
        """Reconcile one MeshJob; failures are retried with exponential backoff."""
        meta = mesh_job["metadata"]
        at, pause_s, known = self._retries.get(meta["uid"], (0.0, _RETRY_FIRST_S, ""))
        if time.monotonic() < at:
            return
        try:
            reconcile(self._api.within(meta["namespace"]), mesh_job, observed)
        except JobError as error:
            if str(error) != known:
                _log(f"MeshJob {meta['namespace']}/{meta['name']}: {error}")
            later = time.monotonic() + pause_s
            self._retries[meta["uid"]] = (later, min(pause_s * 2, _RETRY_MAX_S), str(error))
        else:
            self._retries.pop(meta["uid"], None)

    def _log_once(self, error_text: str) -> None:
        if error_text and error_text != self._last_error:
            _log(error_text)
        self._last_error = error_text


def _by_allocation(objects: list[Object]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = defaultdict(list)
    for one in objects:
        found[one["metadata"]["labels"].get(ALLOCATION_LABEL, "")].append(one)
    return found


def _log(text: str) -> None:
    print(f"mesh operator: {text}", file=sys.stderr, flush=True)
