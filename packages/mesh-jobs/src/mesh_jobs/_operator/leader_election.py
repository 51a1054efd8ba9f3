"""Leader election by a Lease: only the operator that holds the Lease is active."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

from mesh_jobs._errors import JobError
from mesh_jobs._kube_api.client import KubeApi, KubeConflict, KubeNotFound

__all__ = ["Leadership"]

# Fractions of the lease duration: the renewal interval, and how long the holder relies on a
# renewal.
_RENEW_INTERVAL_SHARE = 1 / 4
_RENEW_DEADLINE_SHARE = 3 / 4

Object = dict[str, Any]


class Leadership:
    """Candidate that acquires a Lease and renews it.

    Candidates measure the time since the last renewal with their own clocks, so clocks need not be
    synchronized. The holder stops relying on the Lease before another candidate may acquire it.

    Args:
        api: The API client for the namespace of the Lease.
        name: The name of the Lease.
        holder: The identity of this candidate.
        lasts_s: The lease duration, in seconds.
        changed: An event that is set whenever leadership is won or lost.
    """

    def __init__(
        self, api: KubeApi, name: str, holder: str, lasts_s: int, changed: threading.Event
    ) -> None:
        self._api = api
        self._name = name
        self._holder = holder
        self._duration_s = lasts_s
        self._changed = changed
        self._ended = threading.Event()
        self._until = 0.0
        # The last observed version of another's Lease, and when it was first observed.
        self._observed: tuple[str, float] = ("", 0.0)
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    @property
    def is_held(self) -> bool:
        """Whether this candidate is the leader."""
        return time.monotonic() < self._until

    def start(self) -> None:
        """Start the election in a thread."""
        self._thread.start()

    def end(self) -> None:
        """Stop, and release the Lease so that a standby does not wait for its expiry."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            was_held, now = self.is_held, time.monotonic()
            try:
                if self._acquire():
                    self._until = now + self._duration_s * _RENEW_DEADLINE_SHARE
            except JobError:
                pass  # Without a renewal, leadership ends at the deadline.
            if self.is_held != was_held:
                self._changed.set()
            self._ended.wait(self._duration_s * _RENEW_INTERVAL_SHARE)
        if self.is_held:
            self._until = 0.0
            self._release()

    def _acquire(self) -> bool:
        """Create, renew or take over the Lease; return whether that succeeded."""
        try:
            lease = self._api.get("leases", self._name)
        except KubeNotFound:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": self._spec(0),
            }
            return self._try_write(lambda: self._api.create("leases", body))
        spec = lease.get("spec") or {}
        holder, version = spec.get("holderIdentity"), lease["metadata"]["resourceVersion"]
        if holder and holder != self._holder:
            if self._observed[0] != version:
                self._observed = (version, time.monotonic())
            lasts_s = spec.get("leaseDurationSeconds") or self._duration_s
            if time.monotonic() - self._observed[1] < lasts_s:
                return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self._holder)
        acquired = spec.get("acquireTime") if holder == self._holder else None
        lease["spec"] = {
            **self._spec(transitions),
            **({"acquireTime": acquired} if acquired else {}),
        }
        return self._try_write(lambda: self._api.update("leases", self._name, lease))

    def _try_write(self, write: Any) -> bool:
        try:
            write()
        except KubeConflict:
            return False  # Another candidate was faster.
        return True

    def _spec(self, transitions: int) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": self._duration_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _release(self) -> None:
        try:
            lease = self._api.get("leases", self._name)
            if lease["spec"].get("holderIdentity") == self._holder:
                lease["spec"]["holderIdentity"] = ""
                self._api.update("leases", self._name, lease)
        except JobError:
            return  # A standby then waits for the expiry.
