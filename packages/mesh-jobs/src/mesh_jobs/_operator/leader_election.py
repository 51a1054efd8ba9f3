"""Which of several operators works: the one that holds a Lease."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

from mesh_jobs._errors import JobError
from mesh_jobs._kube_api.client import KubeApi, KubeConflict, KubeMissing

__all__ = ["Leadership"]

# Of the time that a lease lasts: how often it is renewed, and how long it is relied on.
_RENEWED = 1 / 4
_RELIED_ON = 3 / 4

Object = dict[str, Any]


class Leadership:
    """Tries to hold a Lease, and renews it for as long as it does.

    Others judge by their own clocks how long it was not renewed, so clocks may differ. Who holds it
    stops relying on it before anybody else may take it.

    Args:
        api: Where it is.
        name: Its name.
        holder: Who this is.
        lasts_s: How long it lasts when it is not renewed.
        changed: Is set whenever it was won or lost.
    """

    def __init__(
        self, api: KubeApi, name: str, holder: str, lasts_s: int, changed: threading.Event
    ) -> None:
        self._api = api
        self._name = name
        self._holder = holder
        self._lasts_s = lasts_s
        self._changed = changed
        self._ended = threading.Event()
        self._until = 0.0
        # What was seen of another's lease, and since when it is so.
        self._seen: tuple[str, float] = ("", 0.0)
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    @property
    def is_held(self) -> bool:
        """Whether this one works."""
        return time.monotonic() < self._until

    def start(self) -> None:
        """Begins to try."""
        self._thread.start()

    def end(self) -> None:
        """Lets it go, so that another need not wait."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            was_held, now = self.is_held, time.monotonic()
            try:
                if self._take():
                    self._until = now + self._lasts_s * _RELIED_ON
            except JobError:
                pass  # Who cannot ask does not hold it for long: that is all there is to do.
            if self.is_held != was_held:
                self._changed.set()
            self._ended.wait(self._lasts_s * _RENEWED)
        if self.is_held:
            self._until = 0.0
            self._let_go()

    def _take(self) -> bool:
        """Makes the lease, renews it, or takes one that nobody renews; says whether it did."""
        try:
            lease = self._api.get("leases", self._name)
        except KubeMissing:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": self._spec(0),
            }
            return self._wrote(lambda: self._api.create("leases", body))
        spec = lease.get("spec") or {}
        holder, version = spec.get("holderIdentity"), lease["metadata"]["resourceVersion"]
        if holder and holder != self._holder:
            if self._seen[0] != version:
                self._seen = (version, time.monotonic())
            lasts_s = spec.get("leaseDurationSeconds") or self._lasts_s
            if time.monotonic() - self._seen[1] < lasts_s:
                return False
        turns = int(spec.get("leaseTransitions") or 0) + (holder != self._holder)
        acquired = spec.get("acquireTime") if holder == self._holder else None
        lease["spec"] = {**self._spec(turns), **({"acquireTime": acquired} if acquired else {})}
        return self._wrote(lambda: self._api.update("leases", self._name, lease))

    def _wrote(self, write: Any) -> bool:
        try:
            write()
        except KubeConflict:
            return False  # Another was faster.
        return True

    def _spec(self, turns: int) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": self._lasts_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": turns,
        }

    def _let_go(self) -> None:
        try:
            lease = self._api.get("leases", self._name)
            if lease["spec"].get("holderIdentity") == self._holder:
                lease["spec"]["holderIdentity"] = ""
                self._api.update("leases", self._name, lease)
        except JobError:
            return  # Then the next one waits for its end.
