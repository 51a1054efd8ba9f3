"""A job on Kubernetes while somebody waits for it: the cluster tells what changes."""

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
from mesh_jobs._kube_api.informer import KubeWatch

__all__ = ["KubeFollower", "delete_pods", "followed"]

# Pods of a job change all at once: they are looked at together.
_TOGETHER_S = 0.02
# Beyond the grace of its pods, which ends the longest wait for a worker.
_GONE_S = 60.0
_LOOK_S = 5.0

Object = dict[str, Any]
#: Makes a report of what each watch knows.
Reading = Callable[[Sequence[list[Object]]], Report]


class KubeFollower(Follower):
    """Keeps what watches tell, and asks the server itself before anything is decided."""

    def __init__(
        self,
        watches: Sequence[KubeWatch],
        changed: threading.Event,
        reading: Reading,
        ask: Callable[[], Report],
    ) -> None:
        self._watches = watches
        self._changed = changed
        self._reading = reading
        self._ask = ask

    def report(self) -> Report:
        """Reads what the watches have told."""
        return self._reading([watch.objects() for watch in self._watches])

    def confirmed(self) -> Report:
        """Asks the server: a watch may be behind, and what it has at hand may be old."""
        return self._ask()

    def wait(self, seconds: float) -> bool:
        """Waits for the watches to tell something."""
        if not self._changed.wait(seconds):
            return False
        self._changed.clear()
        time.sleep(min(_TOGETHER_S, seconds))
        return True


@contextmanager
def followed(
    api: KubeApi,
    watched: Sequence[tuple[str, str]],
    reading: Reading,
    ask: Callable[[], Report],
) -> Iterator[KubeFollower]:
    """Watches what a job is made of, for as long as the block lasts.

    Args:
        api: Where it is.
        watched: The kind and the labels of what is watched.
        reading: Makes a report of what is known of each.
        ask: Gives the report from the server itself.
    """
    changed = threading.Event()
    watches = [KubeWatch(api, plural, labels, changed.set) for plural, labels in watched]
    try:
        yield KubeFollower(watches, changed, reading, ask)
    finally:
        for one in watches:
            one.close()


def delete_pods(api: KubeApi, selector: str, is_chosen: Callable[[Object], bool]) -> None:
    """Deletes some pods, and waits until they are gone.

    Raises:
        SchedulerUnreachable: They do not end, or the server does not answer.
    """
    if not any(map(is_chosen, api.list("pods", selector))):
        return
    end, changed = time.monotonic() + _GONE_S, threading.Event()
    watch = KubeWatch(api, "pods", selector, changed.set)
    try:
        while left := [pod for pod in watch.objects() if is_chosen(pod)]:
            for pod in left:
                if not is_going(pod):
                    api.delete("pods", pod["metadata"]["name"])
            if time.monotonic() >= end:
                names = ", ".join(str(one["metadata"]["name"]) for one in left[:4])
                raise SchedulerUnreachable(
                    f"{len(left)} pods do not end, such as {names}: their nodes do not answer: "
                    "call it again later"
                )
            changed.wait(_LOOK_S)
            changed.clear()
    finally:
        watch.close()
