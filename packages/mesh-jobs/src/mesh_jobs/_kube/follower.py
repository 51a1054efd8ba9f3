"""The follower of a job on Kubernetes, which is notified of changes by informers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.report import Report
from mesh_jobs._errors import SchedulerUnreachable
from mesh_jobs._kube.pod_status import is_going
from mesh_jobs._kube_api.client import KubeApi
from mesh_jobs._kube_api.informer import KubeInformer

__all__ = ["KubeFollower", "delete_pods", "follow_objects"]

# The pods of a job change in bursts, which are handled in batches.
_BATCH_WINDOW_S = 0.02
# The limit exceeds the grace period of the pods.
_GONE_S = 60.0
_LOOK_S = 5.0

Object = dict[str, Any]
#: A function that creates a report from the objects of each informer.
Reader = Callable[[Sequence[list[Object]]], Report]


class KubeFollower(Follower):
    """Follower that reports the state of informers, and confirms it by querying the API server."""

    def __init__(
        self,
        informers: Sequence[KubeInformer],
        changed: threading.Event,
        read: Reader,
        fetch: Callable[[], Report],
    ) -> None:
        self._informers = informers
        self._changed = changed
        self._read = read
        self._fetch = fetch

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


@contextmanager
def follow_objects(
    api: KubeApi,
    selections: Sequence[tuple[str, str]],
    read: Reader,
    fetch: Callable[[], Report],
) -> Iterator[KubeFollower]:
    """Watch the objects of a job inside the context.

    Args:
        api: The API client.
        selections: The plural name and the label selector of each kind of object.
        read: A function that creates a report from the objects of each informer.
        fetch: A function that requests a report from the API server.
    """
    changed = threading.Event()
    informers = [KubeInformer(api, plural, labels, changed.set) for plural, labels in selections]
    try:
        yield KubeFollower(informers, changed, read, fetch)
    finally:
        for one in informers:
            one.close()


def delete_pods(api: KubeApi, selector: str, is_chosen: Callable[[Object], bool]) -> None:
    """Delete some pods, and wait until they are gone.

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
                if not is_going(pod):
                    api.delete("pods", pod["metadata"]["name"])
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
