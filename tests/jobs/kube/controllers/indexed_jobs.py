"""The controller of indexed jobs: one pod for each index that has not succeeded."""

from __future__ import annotations

import datetime
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import delete
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.store import Store, now_text
from tests.jobs.kube.controllers.owned import Owned, goes, is_over, is_ready

INDEX = "batch.kubernetes.io/job-completion-index"

#: Delay before the next pod of an index after a failure, doubled each time. Real: 10 s.
RETRY_S = 1.0
RETRY_MAX_S = 30.0

DONE = ("Complete", "CompletionsReached")


@dataclass
class _Record:
    """The state of a job that is not derived from its pods, which may be gone."""

    counted: set[str] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    succeeded: set[int] = field(default_factory=set)
    retry_at: dict[int, float] = field(default_factory=dict)


class IndexedJobs:
    """Creates pods, counts their results, and removes jobs after their TTL."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._kind = kind_of(kinds, "jobs", "batch")
        self._pods = Owned(store, kinds)
        self._records: dict[str, _Record] = {}

    def step(self) -> None:
        for job in self._store.every(self._kind):
            if "deletionTimestamp" in job["metadata"]:
                continue
            if _condition(job, "Complete") or _condition(job, "Failed"):
                self._expire(job)
            else:
                self._keep(job)

    def _keep(self, job: Object) -> None:
        record = self._records.setdefault(job["metadata"]["uid"], _Record())
        pods = self._pods.of(job)
        for pod in pods:
            self._count(job, record, pod)
        active = [pod for pod in pods if not is_over(pod) and not goes(pod)]
        if reason := _failure(job, record):
            for pod in active:
                self._pods.delete(pod)
            self._end(job, "Failed", reason)
            return
        given_up = _given_up(job, record)
        wanted = set(range(job["spec"]["completions"])) - record.succeeded - given_up
        if not wanted:
            self._end(job, *(("Failed", "FailedIndexes") if given_up else DONE))
            return
        self._tell(job, record, active)
        if job["spec"]["suspend"]:
            wanted = set()
        there: set[int] = set()
        if "podFailurePolicy" in job["spec"]:
            # In this case a terminating pod must be gone before its replacement is created.
            there |= {_index(pod) for pod in pods if goes(pod) and not is_over(pod)}
        for pod in active:
            if _index(pod) in there or _index(pod) not in wanted:
                self._pods.delete(pod)
            there.add(_index(pod))
        for index in sorted(wanted - there)[: job["spec"]["parallelism"]]:
            if time.monotonic() >= record.retry_at.get(index, 0.0):
                self._make(job, index)

    def _make(self, job: Object, index: int) -> None:
        name = job["metadata"]["name"]
        labels = {
            INDEX: str(index),
            "batch.kubernetes.io/job-name": name,
            "job-name": name,
            "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
        }
        extra: Object = {
            "labels": labels,
            "annotations": {INDEX: str(index)},
            "spec": {"hostname": f"{name}-{index}"},
            "env": [{"name": "JOB_COMPLETION_INDEX", "value": str(index)}],
        }
        self._pods.make(job, f"{name}-{index}-{secrets.token_hex(3)[:5]}", extra)

    def _count(self, job: Object, record: _Record, pod: Object) -> None:
        uid, index = pod["metadata"]["uid"], _index(pod)
        # A deleted pod may never report how it ended, so it counts as failed immediately.
        is_lost = goes(pod) and "podFailurePolicy" not in job["spec"]
        if not (is_over(pod) or is_lost) or uid in record.counted:
            return
        record.counted.add(uid)
        if pod["status"]["phase"] == "Succeeded":
            record.succeeded.add(index)
        elif _action(job, pod) == "FailJob":
            record.failures[-1] = 1
        elif _action(job, pod) != "Ignore":
            failures = record.failures[index] = record.failures.get(index, 0) + 1
            wait = min(RETRY_MAX_S, RETRY_S * 2 ** (failures - 1))
            record.retry_at[index] = time.monotonic() + wait

    def _tell(self, job: Object, record: _Record, active: list[Object]) -> None:
        job["status"] = {
            **job["status"],
            "startTime": job["status"].get("startTime") or now_text(),
            "active": len(active),
            "ready": sum(map(is_ready, active)),
            "succeeded": len(record.succeeded),
            "failed": sum(record.failures.values()),
            "failedIndexes": ",".join(map(str, sorted(_given_up(job, record)))),
        }
        job["metadata"] = self._store.replace(self._kind, job)["metadata"]

    def _end(self, job: Object, type: str, reason: str) -> None:
        condition = {"type": type, "status": "True", "reason": reason, "message": reason}
        condition["lastTransitionTime"] = now_text()
        conditions = [*(job["status"].get("conditions") or []), condition]
        job["status"] = {**job["status"], "conditions": conditions, "active": 0, "ready": 0}
        if type == "Complete":
            job["status"]["completionTime"] = now_text()
            job["status"]["succeeded"] = job["spec"]["completions"]
        self._store.replace(self._kind, job)

    def _expire(self, job: Object) -> None:
        lasts = job["spec"].get("ttlSecondsAfterFinished")
        ended = job["status"]["conditions"][-1]["lastTransitionTime"]
        if lasts is None:
            return
        since = datetime.datetime.fromisoformat(ended)
        if (datetime.datetime.now(datetime.UTC) - since).total_seconds() >= lasts:
            options = {"propagationPolicy": "Background"}
            delete(self._store, self._kinds, self._kind, job, options)


def _index(pod: Object) -> int:
    return int(pod["metadata"]["labels"][INDEX])


def _condition(job: Object, type: str) -> bool:
    return any(one["type"] == type for one in job["status"].get("conditions") or [])


def _failure(job: Object, record: _Record) -> str:
    spec = job["spec"]
    if -1 in record.failures:
        return "PodFailurePolicy"
    if sum(record.failures.values()) > spec["backoffLimit"]:
        return "BackoffLimitExceeded"
    return ""


def _given_up(job: Object, record: _Record) -> set[int]:
    """Return the indexes that have failed too often to be retried."""
    limit = job["spec"].get("backoffLimitPerIndex")
    if limit is None:
        return set()
    return {index for index, failures in record.failures.items() if failures > limit}


def _action(job: Object, pod: Object) -> str:
    """Return the action of the pod failure policy for a failed pod."""
    for rule in (job["spec"].get("podFailurePolicy") or {}).get("rules") or []:
        if _applies(rule, pod):
            return str(rule["action"])
    return "Count"


def _applies(rule: Object, pod: Object) -> bool:
    told: list[Any] = pod["status"].get("conditions") or []
    for wanted in rule.get("onPodConditions") or []:
        if any((one["type"], one["status"]) == (wanted["type"], "True") for one in told):
            return True
    codes = rule.get("onExitCodes")
    if not codes:
        return False
    ended = [
        one["state"]["terminated"]["exitCode"]
        for one in pod["status"].get("containerStatuses") or []
        if "terminated" in one["state"]
    ]
    is_in = any(code in codes["values"] for code in ended if code)
    return is_in if codes["operator"] == "In" else not is_in
