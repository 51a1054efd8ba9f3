"""The controller of JobSets, if the kind is defined: one job for each replicated job."""

from __future__ import annotations

import contextlib

from tests.jobs.kube.api import defaults, validation
from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import check_namespace
from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied, now_text

NAME = "jobset.sigs.k8s.io/jobset-name"


class JobSets:
    """Creates the jobs once, and ends the set when all jobs are complete or one has failed."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._jobs = kind_of(kinds, "jobs", "batch")
        self._namespaces = kind_of(kinds, "namespaces")

    def step(self) -> None:
        kind = self._kinds.find("jobset.x-k8s.io", "v1alpha2", "jobsets")
        for one in self._store.every(kind) if kind else []:
            if "deletionTimestamp" not in one["metadata"]:
                assert kind is not None
                with contextlib.suppress(Refusal):
                    # The next step retries; a terminating namespace refuses all new jobs.
                    self._keep(kind, one)

    def _keep(self, kind: Kind, one: Object) -> None:
        meta, spec = one["metadata"], one["spec"]
        there = []
        for replicated in spec["replicatedJobs"]:
            for number in range(replicated.get("replicas", 1)):
                name = f"{meta['name']}-{replicated['name']}-{number}"
                found = self._store.find(self._jobs, meta["namespace"], name)
                there.append(found or self._make(one, name, replicated["template"]))
        ends = [_end(job) for job in there]
        if "Failed" in ends:
            self._end(kind, one, "Failed")
        elif set(ends) == {"Complete"}:
            self._end(kind, one, "Completed")

    def _make(self, one: Object, name: str, template: Object) -> Object:
        meta, made = one["metadata"], copied(template)
        owner = {key: one[key] for key in ("apiVersion", "kind")}
        owner |= {key: meta[key] for key in ("name", "uid")}
        labels = {**(made.get("metadata") or {}).get("labels", {}), NAME: meta["name"]}
        job: Object = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": labels,
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": made["spec"],
        }
        namespace = self._store.get(self._namespaces, "", meta["namespace"])
        check_namespace(namespace, self._jobs, name)
        validation.check(self._jobs, job, None)
        defaults.fill_in(self._jobs, job)
        return self._store.create(self._jobs, job)

    def _end(self, kind: Kind, one: Object, type: str) -> None:
        status = one.get("status") or {}
        if any(each["type"] == type for each in status.get("conditions") or []):
            return
        condition = {"type": type, "status": "True", "reason": type, "message": f"jobs {type}"}
        condition["lastTransitionTime"] = now_text()
        one["status"] = {**status, "conditions": [condition]}
        self._store.replace(kind, one)


def _end(job: Object) -> str:
    told = (job.get("status") or {}).get("conditions") or []
    return next((one["type"] for one in told if one["type"] in ("Complete", "Failed")), "")
