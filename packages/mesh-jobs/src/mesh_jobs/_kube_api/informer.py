"""Some objects of a cluster as they are now, kept up to date by a watch instead of by asking."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._kube_api.client import KubeApi, KubeTooOld
from mesh_jobs._kube_api.watch_stream import KubeStream

__all__ = ["KubeWatch"]

# Between two tries; a server that cannot answer is not made to work for it.
_FIRST_PAUSE_S = 0.05
_PAUSE_MAX_S = 2.0
_END_S = 2.0

Object = dict[str, Any]


class KubeWatch:
    """Lists objects once and is told from then on what changes, whatever happens to the watch.

    A watch ends by itself now and then, is cut, or is told that where it wants to go on is
    forgotten (410) or not known yet (504). It goes on where it was, or lists anew.

    Args:
        api: Where they are.
        plural: Their kind.
        selector: Their labels.
        changed: Is called, in another thread, when something has changed or cannot be known.
    """

    def __init__(
        self, api: KubeApi, plural: str, selector: str, changed: Callable[[], None]
    ) -> None:
        self._api = api
        self._plural = plural
        self._selector = selector
        self._changed = changed
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._ended = threading.Event()
        self._objects: dict[str, Object] = {}
        self._error: JobError | None = None
        self._stream: KubeStream | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._thread = threading.Thread(target=self._run, name=f"watch {plural}", daemon=True)
        self._thread.start()

    def objects(self) -> list[Object]:
        """Gives them as they are, as far as is known here; waits until that is known at all.

        Nobody may change them.

        Raises:
            SchedulerUnreachable: The server does not answer now.
            JobError: It refuses.
        """
        self._known.wait()
        with self._lock:
            if self._error is not None:
                raise self._error
            return list(self._objects.values())

    def close(self) -> None:
        """Ends the watch."""
        self._ended.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        self._thread.join(_END_S)

    def _run(self) -> None:
        version: str | None = None
        is_cached = False
        while not self._ended.is_set():
            try:
                if version is None:
                    version = self._list(is_cached)
                version = self._follow(version)
            except KubeTooOld:
                # What the server has at hand is what it can watch from.
                version, is_cached = None, True
            except SchedulerUnreachable as error:
                # What was known before is known still: it goes on from there.
                self._tell(error)
            except JobError as error:
                # A right may be given later, or the kind be defined.
                version = None
                self._tell(error)
            self._ended.wait(self._pause_s)
            self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S)

    def _list(self, is_cached: bool) -> str:
        found, version = self._api.listed(self._plural, self._selector, is_cached=is_cached)
        with self._lock:
            self._objects = {one["metadata"]["uid"]: one for one in found}
        self._tell(None)
        return version

    def _follow(self, version: str) -> str:
        """Notes what changes until the watch ends; gives the version that it came to.

        Raises:
            KubeTooOld: The server cannot tell from here.
            SchedulerUnreachable: It cannot be reached.
            JobError: It refuses.
        """
        stream = self._api.watch(self._plural, self._selector, version)
        with self._lock:
            self._stream = stream
            if self._ended.is_set():
                stream.close()
        if self._error is not None:
            self._tell(None)
        try:
            for type, one in stream:
                if type == "ERROR":
                    raise KubeTooOld(f"the cluster ends a watch: {one.get('message')}: list anew")
                version = one["metadata"]["resourceVersion"]
                self._pause_s = _FIRST_PAUSE_S
                if type != "BOOKMARK":
                    self._note(type, one)
        finally:
            with self._lock:
                self._stream = None
        return version

    def _note(self, type: str, one: Object) -> None:
        with self._lock:
            uid = one["metadata"]["uid"]
            if type == "DELETED":
                self._objects.pop(uid, None)
            else:
                self._objects[uid] = one
        self._changed()

    def _tell(self, error: JobError | None) -> None:
        with self._lock:
            self._error = error
        self._known.set()
        self._changed()
