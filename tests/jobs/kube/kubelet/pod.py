"""A pod on its node: its thread starts, monitors and stops the containers."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

from tests.jobs.kube.api.deletion import end_grace
from tests.jobs.kube.api.events import Recorder
from tests.jobs.kube.api.kind import Kind, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, now_text
from tests.jobs.kube.kubelet.container import Container
from tests.jobs.kube.kubelet.container_environment import ContainerEnvironment

#: Interval at which a pod checks its processes.
LOOK_S = 0.05

#: The annotation with the fault of a pod: `oom`, `evict`, `shutdown` or `hang-pull`. `shutdown` is
#: a shutdown of the node: the kubelet stops the pod without a deletion.
FAULT = "test/kubelet"


class Pod:
    """The processes of one pod. `wake` notifies it of a change of its object.

    The object is the stored one, which must not be modified.
    """

    def __init__(
        self,
        store: Store,
        kind: Kind,
        object: Object,
        address: str,
        container_environment: ContainerEnvironment,
        events: Recorder,
    ) -> None:
        self.object = object
        self.uid = str(object["metadata"]["uid"])
        self.address = address
        self.is_over = False
        spec = object["spec"]
        self.containers = [
            Container(one, container_environment.folder, container_environment)
            for one in spec["containers"]
        ]
        self._first = [
            Container(one, container_environment.folder, container_environment)
            for one in spec.get("initContainers") or []
        ]
        self._store = store
        self._kind = kind
        self._events = events
        self._woken = threading.Event()
        self._is_lost = False
        self._began = now_text()
        self._told: tuple[Object, Object] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"pod {self.uid}")
        self._thread.start()

    def wake(self, object: Object | None) -> None:
        """Notify the pod of a change; None means that it was deleted without a grace period."""
        if object is None:
            gone = {**self.object["metadata"], "deletionGracePeriodSeconds": 0}
            object = {**self.object, "metadata": {**gone, "deletionTimestamp": now_text()}}
        self.object = object
        self._woken.set()

    def lose(self) -> None:
        """Kill the processes without an update of the status, because the node has died."""
        self._is_lost = True
        self._woken.set()

    def join(self) -> None:
        self._thread.join()

    @property
    def _is_ended(self) -> bool:
        return self._is_lost or "deletionTimestamp" in self.object["metadata"]

    @property
    def _fault(self) -> str:
        return str((self.object["metadata"].get("annotations") or {}).get(FAULT, ""))

    @property
    def _grace_s(self) -> float:
        meta = self.object["metadata"]
        if self._is_lost:
            return 0.0
        if "deletionTimestamp" not in meta:
            return float(self.object["spec"]["terminationGracePeriodSeconds"])
        return float(meta.get("deletionGracePeriodSeconds") or 0)

    def _wait(self) -> None:
        self._woken.wait(LOOK_S)
        self._woken.clear()

    def _run(self) -> None:
        try:
            if self._fault == "hang-pull":
                for one in self.containers:
                    message = "Back-off pulling image: told to hang"
                    one.state = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
                self._tell("Pending")
                self._events.tell(self.object, "BackOff", "Back-off pulling image: told to hang")
                while not self._is_ended:
                    self._woken.wait()
                    self._woken.clear()
            elif self._begin():
                self._look_after()
        finally:
            self._finish()

    def _begin(self) -> bool:
        """Run the init containers, and return whether all succeeded."""
        for one in self._first:
            one.start(self._with_address())
            self._tell("Pending", is_begun=False)
            while one.exit_code is None and not self._is_ended:
                one.look(self.address)
                self._wait()
            if one.exit_code:
                self._tell("Failed", is_begun=False)
                self._wait_for_deletion()
            if self._is_ended:
                return False
        return True

    def _look_after(self) -> None:
        for one in self.containers:
            one.start(self._with_address())
        while not self._is_ended:
            fault = self._fault
            if fault in ("oom", "evict"):
                self._signal(signal.SIGKILL)
            if fault == "shutdown":
                self._end_processes()
                message = "Pod was terminated in response to imminent node shutdown."
                self._tell("Failed", reason="Terminated", message=message)
                self._wait_for_deletion()
                return
            for one in self.containers:
                one.look(self.address, "OOMKilled" if fault == "oom" else "")
            if fault == "evict" and not any(one.is_alive for one in self.containers):
                self._events.tell(self.object, "Evicted", "the node was low on memory")
                self._tell("Failed", reason="Evicted", message="the node was low on memory")
                self._wait_for_deletion()
                return
            self._restart()
            phase = self._phase()
            self._tell(phase)
            if phase in ("Succeeded", "Failed"):
                self._wait_for_deletion()
                return
            self._wait()

    def _restart(self) -> None:
        policy = self.object["spec"]["restartPolicy"]
        for one in self.containers:
            ended_badly = one.exit_code not in (None, 0)
            is_due = one.exit_code is not None and (
                policy == "Always" or (policy == "OnFailure" and ended_badly)
            )
            if is_due or "waiting" in one.state:
                one.restart(self._with_address())

    def _phase(self) -> str:
        codes = [one.exit_code for one in self.containers]
        if all(code is not None for code in codes):
            return "Failed" if any(codes) else "Succeeded"
        has_begun = any(one.restarts or "waiting" not in one.state for one in self.containers)
        return "Running" if has_begun else "Pending"

    def _with_address(self) -> Object:
        return {**self.object, "status": {**self.object["status"], "podIP": self.address}}

    def _wait_for_deletion(self) -> None:
        while not self._is_ended:
            self._woken.wait()
            self._woken.clear()

    def _signal(self, number: int) -> None:
        for one in [*self._first, *self.containers]:
            one.signal(number)

    def _finish(self) -> None:
        """Stop the processes and confirm the deletion of the pod."""
        self._end_processes()
        if not self._is_lost:
            self._tell(self._phase())
            self._confirm()
        self.is_over = True

    def _end_processes(self) -> None:
        """Send SIGTERM to the processes, and SIGKILL after the grace period."""
        began = time.monotonic()
        everyone = [*self._first, *self.containers]
        if not self._is_lost:
            self._signal(signal.SIGTERM)
        # Another deletion may shorten the grace period.
        while time.monotonic() < began + self._grace_s and any(one.is_alive for one in everyone):
            self._wait()
        while any(one.is_alive for one in everyone):
            self._signal(signal.SIGKILL)
            self._wait()
        for one in everyone:
            one.look(self.address)
            one.kill_all(self.uid)

    def _confirm(self) -> None:
        meta = self.object["metadata"]
        try:
            found = self._store.get(self._kind, meta["namespace"], meta["name"])
            if found["metadata"]["uid"] == self.uid:
                end_grace(self._store, self._kind, found)
        except Refusal:
            return

    def _tell(self, phase: str, is_begun: bool = True, **more: Any) -> None:
        """Write the status if it has changed."""
        statuses = [one.status() for one in self.containers]
        is_ready = phase == "Running" and all(one["ready"] for one in statuses)
        told = {
            "phase": phase,
            "hostIP": "127.0.0.1",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": self._began,
            "containerStatuses": statuses,
            "initContainerStatuses": [one.status() for one in self._first],
            **more,
        }
        wanted = {
            "Initialized": str(is_begun),
            "ContainersReady": str(is_ready),
            "Ready": str(is_ready),
        }
        if (told, wanted) == self._told:
            return
        self._told = (told, wanted)
        while not self._write(told, wanted):
            pass

    def _write(self, told: Object, wanted: dict[str, str]) -> bool:
        meta = self.object["metadata"]
        found = self._store.find(self._kind, meta["namespace"], meta["name"])
        if found is None or found["metadata"]["uid"] != self.uid:
            return True
        conditions = {one["type"]: one for one in found["status"].get("conditions") or []}
        for type, status in wanted.items():
            old = conditions.get(type)
            if old is None or old["status"] != status:
                conditions[type] = {
                    "type": type,
                    "status": status,
                    "lastTransitionTime": now_text(),
                }
        found["status"] = {**found["status"], **told, "conditions": list(conditions.values())}
        try:
            self._store.replace(self._kind, found)
        except Refusal as refusal:
            return refusal.code != 409
        return True
