"""The follower of a job on Kubernetes, which is notified of changes by informers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.report import HostDraining, Report
from mesh_jobs._errors import SchedulerUnreachable
from mesh_jobs._kube.eviction_notices import NoticeBuffer
from mesh_jobs._kube_api.client import KubeApi
from mesh_jobs._kube_api.informer import KubeInformer

__all__ = ["KubeFollower", "Selection", "delete_pods", "follow_objects"]

# The pods of a job change in bursts, which are handled in batches.
_BATCH_WINDOW_S = 0.02
# The grace period of pods that their own job deletes. That of the pods themselves is as long as a
# checkpoint takes, but here the program has decided to stop.
_GRACE_S = 10
# The limit exceeds this grace period.
_GONE_S = 60.0
_LOOK_S = 5.0

Object = dict[str, Any]
#: A function that creates a report from the objects of each informer.
Reader = Callable[[Sequence[list[Object]]], Report]


@dataclass(frozen=True)
class Selection:
    """Objects to watch.

    Attributes:
        plural: The plural name of their kind.
        labels: Their label selector.
        place: For pods, a function that returns the mesh and the rank of a pod.
    """

    plural: str
    labels: str
    place: Callable[[Mapping[str, Any]], tuple[str, int]] | None = None


class KubeFollower(Follower):
    """Follower that reports the state of informers, and confirms it by querying the API server."""

    def __init__(
        self,
        informers: Sequence[KubeInformer],
        changed: threading.Event,
        read: Reader,
        fetch: Callable[[], Report],
        notices: Sequence[NoticeBuffer],
    ) -> None:
        self._informers = informers
        self._changed = changed
        self._read = read
        self._fetch = fetch
        self._notices = notices

    def report(self) -> Report:
        """Return a report from the state of the informers."""
        return self._read([informer.objects() for informer in self._informers])

    def confirmed(self) -> Report:
        """Return a report from the API server, because informers may be out of date."""
        return self._fetch()

    def wait(self, seconds: float) -> bool:
        """Wait for a change of an informer."""
        if not self._changed.wait(seconds):
            return False
        self._changed.clear()
        time.sleep(min(_BATCH_WINDOW_S, seconds))
        return True

    def leaving(self) -> list[HostDraining]:
        """Return the notices that the watches have reported since the last call."""
        return [notice for buffer in self._notices for notice in buffer.take()]


@contextmanager
def follow_objects(
    api: KubeApi,
    selections: Sequence[Selection],
    read: Reader,
    fetch: Callable[[], Report],
    *,
    has_nodes: bool = False,
) -> Iterator[KubeFollower]:
    """Watch the objects of a job inside the context.

    Args:
        api: The API client.
        selections: The objects of the job.
        read: A function that creates a report from the objects of each informer.
        fetch: A function that requests a report from the API server.
        has_nodes: Whether to watch the nodes of the cluster too, which `read` does not need.
    """
    changed, notices, informers = threading.Event(), [], []
    for one in selections:
        buffer = None if one.place is None else NoticeBuffer(one.place)
        notices += [buffer] if buffer is not None else []
        on_object = None if buffer is None else buffer.add
        informers.append(KubeInformer(api, one.plural, one.labels, changed.set, on_object))
    nodes = [KubeInformer(api.cluster_wide(), "nodes", "", changed.set)] if has_nodes else []
    try:
        yield KubeFollower(informers, changed, read, fetch, notices)
    finally:
        for informer in (*informers, *nodes):
            informer.close()


def delete_pods(api: KubeApi, selector: str, is_chosen: Callable[[Object], bool]) -> None:
    """Delete some pods with a short grace period, and wait until they are gone.

    Raises:
        SchedulerUnreachable: The pods do not terminate, or the API server does not respond.
    """
    if not any(map(is_chosen, api.list("pods", selector))):
        return
    end, changed = time.monotonic() + _GONE_S, threading.Event()
    informer = KubeInformer(api, "pods", selector, changed.set)
    try:
        while left := [pod for pod in informer.objects() if is_chosen(pod)]:
            for pod in left:
                if _grace_s(pod) > _GRACE_S:
                    api.delete("pods", pod["metadata"]["name"], grace_s=_GRACE_S)
            if time.monotonic() >= end:
                names = ", ".join(str(one["metadata"]["name"]) for one in left[:4])
                raise SchedulerUnreachable(
                    f"{len(left)} pods do not terminate, such as {names}: their nodes do not "
                    "respond: try again later"
                )
            changed.wait(_LOOK_S)
            changed.clear()
    finally:
        informer.close()


def _grace_s(pod: Object) -> float:
    """Return the grace period with which a pod was deleted; infinity if it was not."""
    return float(pod["metadata"].get("deletionGracePeriodSeconds", "inf"))
