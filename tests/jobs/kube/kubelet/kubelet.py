"""The nodes of the cluster: they run the containers of their pods as processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import end_grace
from tests.jobs.kube.api.events import Recorder
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied
from tests.jobs.kube.kubelet.addresses import Addresses
from tests.jobs.kube.kubelet.container_environment import KUBECONFIG, ContainerEnvironment
from tests.jobs.kube.kubelet.pod import FAULT, Pod

#: Capacity of each node.
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}


class Kubelet:
    """The kubelet of all nodes; an annotation on a node makes it `dead`."""

    def __init__(self, store: Store, kinds: Kinds, folder: Path, nodes: int) -> None:
        self.heartbeats: dict[str, float] = {}
        #: Writes a kubeconfig of a service account: namespace, name and path. The server sets it.
        self.write_kubeconfig: Callable[[str, str, Path], None] = lambda *_: None
        self._store = store
        self._kinds = kinds
        self._folder = folder
        self._nodes = kind_of(kinds, "nodes")
        self._kind = kind_of(kinds, "pods")
        self._addresses = Addresses()
        self._events = Recorder(store, kinds, "kubelet")
        self._pods: dict[str, Pod] = {}
        self._dead: set[str] = set()
        for number in range(nodes):
            self._register(f"node-{number}", number)

    def _register(self, name: str, number: int) -> None:
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": f"zone-{number % 2}",
        }
        self.heartbeats[name] = time.monotonic()
        node: Object = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
        }
        self._store.create(self._nodes, node)

    def step(self) -> None:
        for node in self._store.view(self._nodes):
            self._tend(node)
        objects = {one["metadata"]["uid"]: one for one in self._store.view(self._kind)}
        for uid, pod in list(self._pods.items()):
            if pod.is_over:
                self._addresses.give_back(pod.address)
                del self._pods[uid]
            elif uid not in objects:
                pod.wake(None)
            elif _version(objects[uid]) != _version(pod.object):
                pod.wake(objects[uid])
        for uid, object in objects.items():
            name = object["spec"].get("nodeName")
            if uid not in self._pods and name in self.heartbeats and name not in self._dead:
                self._begin(object)

    def _tend(self, node: Object) -> None:
        name = node["metadata"]["name"]
        fault = (node["metadata"].get("annotations") or {}).get(FAULT)
        mine = [pod for pod in self._pods.values() if pod.object["spec"]["nodeName"] == name]
        if fault == "dead":
            self._dead.add(name)
            for pod in mine:
                pod.lose()
            return
        self._dead.discard(name)
        self.heartbeats[name] = time.monotonic()

    def _begin(self, object: Object) -> None:
        meta = object["metadata"]
        if object["status"]["phase"] in ("Succeeded", "Failed") or "deletionTimestamp" in meta:
            if meta.get("deletionGracePeriodSeconds"):
                end_grace(self._store, self._kind, copied(object))
            return
        folder = self._folder / meta["uid"]
        folder.mkdir(parents=True, exist_ok=True)
        account = object["spec"]["serviceAccountName"]
        if object["spec"].get("automountServiceAccountToken", True):
            self.write_kubeconfig(meta["namespace"], account, folder / KUBECONFIG)
        container_environment = ContainerEnvironment(self._store, self._kinds, folder)
        address = self._addresses.take()
        pod = Pod(self._store, self._kind, object, address, container_environment, self._events)
        self._pods[meta["uid"]] = pod

    def read_log(self, object: Object, container: str, previous: bool) -> str | None:
        """Return the log of a container, or None if it has not started.

        Raises:
            Refusal: No previous run exists.
        """
        pod = self._pods.get(object["metadata"]["uid"])
        for one in pod.containers if pod else []:
            if one.name == container:
                path = one.log_path(previous)
                if path.exists():
                    return path.read_text(errors="replace")
                if previous:
                    message = f'previous terminated container "{container}" not found'
                    raise Refusal(400, message)
        return None

    def end(self) -> None:
        """Kill everything that is running."""
        for pod in self._pods.values():
            pod.lose()
        for pod in self._pods.values():
            pod.join()


def _version(object: Object) -> str:
    return str(object["metadata"]["resourceVersion"])
