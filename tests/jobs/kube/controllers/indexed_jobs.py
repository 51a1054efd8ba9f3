"""The controller of indexed jobs: one pod for each index that has not succeeded."""

from __future__ import annotations

import contextlib
import datetime
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import delete, drop_finalizer
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied, now_text
from tests.jobs.kube.controllers.owned import Owned, goes, is_over, is_ready

INDEX = "batch.kubernetes.io/job-completion-index"

#: The number of failed pods of an index, if failures are counted per index.
FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"

#: The finalizer that keeps a pod until the job has counted it.
TRACKING = "batch.kubernetes.io/job-tracking"

#: Delay before the next pod after a failure, doubled each time. Real: 10 s, and 600 s at most.
RETRY_S = 1.0
RETRY_MAX_S = 30.0

DONE = ("Complete", "CompletionsReached")


@dataclass
class _Record:
    """The state of a job that is not derived from its pods, which may have been removed."""

    failed_at: dict[str, float] = field(default_factory=dict)
    succeeded: set[int] = field(default_factory=set)
    #: The indexes that have failed too often to be retried.
    given_up: set[int] = field(default_factory=set)
    failures: int = 0
    is_failed_by_policy: bool = False
    #: Failures since the last success; they determine the delay unless it is per index.
    failures_in_row: int = 0
    retry_at: float = 0.0


class IndexedJobs:
    """Creates pods, counts their results, and removes jobs after their TTL.

    A failed pod keeps its finalizer until the job has counted it. With `backoffLimitPerIndex`, the
    number of failures of an index is an annotation of its newest pod, so a failed pod keeps its
    finalizer until its replacement exists. All finalizers are removed when the job ends.
    """

    def __init__(
        self, store: Store, kinds: Kinds, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._kind = kind_of(kinds, "jobs", "batch")
        self._pods = Owned(store, kinds)
        self._records: dict[str, _Record] = {}
        self._now = now

    def step(self) -> None:
        jobs = self._store.every(self._kind)
        for job in jobs:
            # The next step retries; a terminating namespace refuses all new pods.
            with contextlib.suppress(Refusal):
                if "deletionTimestamp" in job["metadata"]:
                    self._release(self._pods.of(job))
                elif _condition(job, "Complete") or _condition(job, "Failed"):
                    self._release(self._pods.of(job))
                    self._expire(job)
                else:
                    self._keep(job)
        uids = {job["metadata"]["uid"] for job in jobs}
        pods = filter(_is_tracked, self._store.view(self._pods.kind))
        self._release(pod for pod in pods if _owner(pod) not in uids)

    def _keep(self, job: Object) -> None:
        record = self._records.setdefault(job["metadata"]["uid"], _Record())
        pods = self._pods.of(job)
        for pod in filter(_is_tracked, pods):
            self._count(job, record, pod)
        active = [pod for pod in pods if not is_over(pod) and not goes(pod)]
        if reason := _failure(job, record):
            for pod in active:
                self._pods.delete(pod)
            self._end(job, "Failed", reason)
            return
        wanted = set(range(job["spec"]["completions"])) - record.succeeded - record.given_up
        if not wanted:
            self._end(job, *(("Failed", "FailedIndexes") if record.given_up else DONE))
            return
        self._tell(job, record, active)
        if job["spec"]["suspend"]:
            wanted = set()
        kept = self._kept_for_replacements(job, record, pods, active)
        waiting = {pod["metadata"]["uid"] for pod in kept.values()}
        counted = record.failed_at.keys() - waiting
        self._release(pod for pod in pods if pod["metadata"]["uid"] in counted)
        there: set[int] = set()
        if _replaces_only_failed(job):
            # In this case a terminating pod must be removed before its replacement is created.
            there |= {_index(pod) for pod in pods if goes(pod) and not is_over(pod)}
        for pod in active:
            if _index(pod) in there or _index(pod) not in wanted:
                self._remove(pod)
            there.add(_index(pod))
        self._make_all(job, record, sorted(wanted - there), kept)

    def _make_all(
        self, job: Object, record: _Record, indexes: Sequence[int], kept: dict[int, Object]
    ) -> None:
        """Create the missing pods whose delay is over."""
        is_per_index = "backoffLimitPerIndex" in job["spec"]
        for index in indexes[: job["spec"]["parallelism"]]:
            failed = kept.get(index)
            count = _failures(failed) + _counts(job, failed) if failed else 0
            retry_at = record.retry_at
            if is_per_index:
                uid = failed["metadata"]["uid"] if failed else ""
                retry_at = record.failed_at.get(uid, 0.0) + _delay_s(count)
            if self._now() >= retry_at:
                self._make(job, index, {FAILURE_COUNT: str(count)} if is_per_index else {})

    def _make(self, job: Object, index: int, notes: dict[str, str]) -> None:
        name = job["metadata"]["name"]
        labels = {
            INDEX: str(index),
            "batch.kubernetes.io/job-name": name,
            "job-name": name,
            "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
        }
        extra: Object = {
            "labels": labels,
            "annotations": {INDEX: str(index), **notes},
            "finalizers": [TRACKING],
            "spec": {"hostname": f"{name}-{index}"},
            "env": [{"name": "JOB_COMPLETION_INDEX", "value": str(index)}],
        }
        self._pods.make(job, f"{name}-{index}-{secrets.token_hex(3)[:5]}", extra)

    def _count(self, job: Object, record: _Record, pod: Object) -> None:
        """Count a pod that has succeeded or failed, once."""
        uid, index = pod["metadata"]["uid"], _index(pod)
        if pod["status"]["phase"] == "Succeeded":
            record.succeeded.add(index)
            record.failures_in_row, record.retry_at = 0, 0.0
            self._release([pod])
        if uid in record.failed_at or not _has_failed(job, pod):
            return
        record.failed_at[uid] = self._now()
        if index >= job["spec"]["completions"]:
            return
        # Failures that the policy ignores delay the next pod, too.
        record.failures_in_row += 1
        record.retry_at = self._now() + _delay_s(record.failures_in_row)
        record.is_failed_by_policy |= _action(job, pod) == "FailJob"
        record.failures += _counts(job, pod)
        limit = job["spec"].get("backoffLimitPerIndex")
        if limit is not None and _failures(pod) + _counts(job, pod) > limit:
            record.given_up.add(index)

    def _kept_for_replacements(
        self, job: Object, record: _Record, pods: list[Object], active: list[Object]
    ) -> dict[int, Object]:
        """Return the newest failed pod of each index that has no other pod to carry its count."""
        if "backoffLimitPerIndex" not in job["spec"]:
            return {}
        done = record.succeeded | record.given_up | {_index(pod) for pod in active}
        kept: dict[int, Object] = {}
        for pod in sorted(filter(_is_tracked, pods), key=_failures):
            is_counted = pod["metadata"]["uid"] in record.failed_at
            if is_counted and _index(pod) not in done and _index(pod) < job["spec"]["completions"]:
                kept[_index(pod)] = pod
        return kept

    def _release(self, pods: Iterable[Object]) -> None:
        """Remove the finalizer of pods, so that they can be deleted."""
        for pod in pods:
            if _is_tracked(pod):
                with contextlib.suppress(Refusal):
                    drop_finalizer(self._store, self._pods.kind, copied(pod), TRACKING)

    def _remove(self, pod: Object) -> None:
        """Delete a pod that is not needed any more, without counting it as failed."""
        self._release([pod])
        meta = pod["metadata"]
        if found := self._store.find(self._pods.kind, meta["namespace"], meta["name"]):
            self._pods.delete(found)

    def _tell(self, job: Object, record: _Record, active: list[Object]) -> None:
        job["status"] = {
            **job["status"],
            "startTime": job["status"].get("startTime") or now_text(),
            "active": len(active),
            "ready": sum(map(is_ready, active)),
            "succeeded": len(record.succeeded),
            "failed": record.failures,
        }
        if "backoffLimitPerIndex" in job["spec"]:
            job["status"]["failedIndexes"] = ",".join(map(str, sorted(record.given_up)))
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


def _is_tracked(pod: Object) -> bool:
    return TRACKING in (pod["metadata"].get("finalizers") or [])


def _owner(pod: Object) -> str:
    """Return the uid of the controller of a pod; empty if it has none."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")


def _replaces_only_failed(job: Object) -> bool:
    """Return whether a terminating pod is replaced only after it has ended."""
    spec = job["spec"]
    return "podFailurePolicy" in spec or spec.get("podReplacementPolicy") == "Failed"


def _has_failed(job: Object, pod: Object) -> bool:
    phase = pod["status"].get("phase")
    # A deleted pod may never report how it ended, so it counts as failed immediately.
    is_lost = goes(pod) and not _replaces_only_failed(job)
    return phase == "Failed" or (is_lost and phase != "Succeeded")


def _failures(pod: Object) -> int:
    """Return how many pods of the index failed before this one."""
    return int((pod["metadata"].get("annotations") or {}).get(FAILURE_COUNT, 0))


def _counts(job: Object, pod: Object) -> bool:
    """Return whether the failure of a pod counts towards the limits."""
    return _action(job, pod) != "Ignore"


def _delay_s(failures: int) -> float:
    return min(RETRY_MAX_S, RETRY_S * 2 ** (failures - 1)) if failures else 0.0


def _failure(job: Object, record: _Record) -> str:
    if record.is_failed_by_policy:
        return "PodFailurePolicy"
    if record.failures > job["spec"]["backoffLimit"]:
        return "BackoffLimitExceeded"
    return ""


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
