"""The operator: looks at all MeshJobs and what was made of them, whenever something changes."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from typing import Any

from mesh_jobs._errors import JobError
from mesh_jobs._kube.manifests import ORDER_LABEL
from mesh_jobs._kube.mesh_job import MESH_JOB_LABEL, order_id
from mesh_jobs._kube_api.client import KubeApi
from mesh_jobs._kube_api.informer import KubeWatch
from mesh_jobs._operator.leader_election import Leadership
from mesh_jobs._operator.reconciler import Made, reconcile

__all__ = ["Operator"]

# Time passes too: leases end, and what was refused is tried again.
_LOOK_S = 5.0
# Changes come in swarms: they are looked at together, and most of the time is left to others.
_TOGETHER_S = 0.1
_REST_PER_WORK = 4.0
_RETRY_FIRST_S = 0.5
_RETRY_MAX_S = 60.0

Object = dict[str, Any]


class Operator:
    """Brings what there is to what MeshJobs ask for, from what there is now and nothing else.

    Args:
        api: The namespace to look after; an empty one for all.
        leadership: Whether this operator works, or waits for the one that does.
        changed: Is set when something is to be looked at.
    """

    def __init__(self, api: KubeApi, leadership: Leadership, changed: threading.Event) -> None:
        self._api = api
        self._leadership = leadership
        self._changed = changed
        self._retries: dict[str, tuple[float, float]] = {}
        self._complaint = ""

    def run(self, ended: threading.Event) -> None:
        """Works until it is told to end."""
        self._leadership.start()
        kinds = ("meshjobs", "pods", "jobs", "statefulsets")
        selectors = {"meshjobs": ""}
        watches = {
            kind: KubeWatch(self._api, kind, selectors.get(kind, MESH_JOB_LABEL), self._changed.set)
            for kind in kinds
        }
        try:
            while not ended.is_set():
                began = time.monotonic()
                if self._leadership.is_held:
                    self._look(watches)
                worked_s = time.monotonic() - began
                ended.wait(max(_TOGETHER_S, worked_s * _REST_PER_WORK))
                self._changed.wait(_LOOK_S)
                self._changed.clear()
        finally:
            self._leadership.end()
            for watch in watches.values():
                watch.close()

    def _look(self, watches: dict[str, KubeWatch]) -> None:
        """Looks at every MeshJob once."""
        try:
            known = {kind: watch.objects() for kind, watch in watches.items()}
        except JobError as error:
            self._complain(str(error))
            return
        self._complain("")
        pods = _by_order(known["pods"])
        makers = _by_order([*known["jobs"], *known["statefulsets"]])
        for mesh_job in known["meshjobs"]:
            if not self._leadership.is_held:
                return
            order = order_id(mesh_job)
            self._try(mesh_job, Made(pods[order], makers[order]))

    def _try(self, mesh_job: Object, made: Made) -> None:
        """Brings one MeshJob on; one that fails waits longer each time, and keeps none waiting."""
        meta = mesh_job["metadata"]
        at, pause_s = self._retries.get(meta["uid"], (0.0, _RETRY_FIRST_S))
        if time.monotonic() < at:
            return
        try:
            reconcile(self._api.within(meta["namespace"]), mesh_job, made)
        except JobError as error:
            _say(f"MeshJob {meta['namespace']}/{meta['name']}: {error}")
            later = time.monotonic() + pause_s
            self._retries[meta["uid"]] = (later, min(pause_s * 2, _RETRY_MAX_S))
        else:
            self._retries.pop(meta["uid"], None)

    def _complain(self, complaint: str) -> None:
        if complaint and complaint != self._complaint:
            _say(complaint)
        self._complaint = complaint


def _by_order(objects: list[Object]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = defaultdict(list)
    for one in objects:
        found[one["metadata"]["labels"].get(ORDER_LABEL, "")].append(one)
    return found


def _say(text: str) -> None:
    print(f"mesh operator: {text}", file=sys.stderr, flush=True)
