"""An informer: a local copy of some objects of a cluster, kept up to date by a watch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._kube_api.client import KubeApi, KubeExpired
from mesh_jobs._kube_api.watch_stream import KubeWatchStream

__all__ = ["KubeInformer"]

# The bounds of the exponential backoff between attempts.
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0
_END_S = 2.0

Object = dict[str, Any]


class KubeInformer:
    """Informer that lists objects once, then watches them for changes.

    A watch times out regularly, may be disconnected, and fails if its resource version has expired
    (410) or is ahead of the server's cache (504). The informer resumes the watch at the last
    version, or lists the objects again.

    Args:
        api: The API client.
        plural: The plural name of the resource.
        selector: The label selector.
        changed: A function that is called in another thread when an object has changed or the state
            is unknown.
        on_object: A function that is called with each state of each object, in order, before
            `changed`.
    """

    def __init__(
        self,
        api: KubeApi,
        plural: str,
        selector: str,
        changed: Callable[[], None],
        on_object: Callable[[Object], None] | None = None,
    ) -> None:
        self._api = api
        self._plural = plural
        self._selector = selector
        self._changed = changed
        self._on_object = on_object
        self._lock = threading.Lock()
        self._synced = threading.Event()
        self._closed = threading.Event()
        self._objects: dict[str, Object] = {}
        self._error: JobError | None = None
        self._stream: KubeWatchStream | None = None
        self._backoff_s = _BACKOFF_MIN_S
        self._thread = threading.Thread(target=self._run, name=f"watch {plural}", daemon=True)
        self._thread.start()

    def objects(self) -> list[Object]:
        """Return the objects, which callers must not modify; blocks until the first list.

        Raises:
            SchedulerUnreachable: The API server does not respond at the moment.
            JobError: The API server rejects the request.
        """
        self._synced.wait()
        with self._lock:
            if self._error is not None:
                raise self._error
            return list(self._objects.values())

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        self._thread.join(_END_S)

    def _run(self) -> None:
        version: str | None = None
        is_cached = False
        while not self._closed.is_set():
            try:
                if version is None:
                    version = self._list(is_cached)
                version = self._watch(version)
            except KubeExpired:
                # A list from the cache of the server returns a version that it can watch from.
                version, is_cached = None, True
            except SchedulerUnreachable as error:
                # The version is still valid: the watch resumes there.
                self._set_error(error)
            except JobError as error:
                # The permission or the resource definition may be added later.
                version = None
                self._set_error(error)
            self._closed.wait(self._backoff_s)
            self._backoff_s = min(self._backoff_s * 2, _BACKOFF_MAX_S)

    def _list(self, is_cached: bool) -> str:
        found, version = self._api.listed(self._plural, self._selector, is_cached=is_cached)
        with self._lock:
            self._objects = {one["metadata"]["uid"]: one for one in found}
        if self._on_object is not None:
            for one in found:
                self._on_object(one)
        self._set_error(None)
        return version

    def _watch(self, version: str) -> str:
        """Apply events until the watch ends; return the last resource version.

        Raises:
            KubeExpired: The resource version has expired.
            SchedulerUnreachable: The API server cannot be reached.
            JobError: The API server rejects the request.
        """
        stream = self._api.watch(self._plural, self._selector, version)
        with self._lock:
            self._stream = stream
            if self._closed.is_set():
                stream.close()
        if self._error is not None:
            self._set_error(None)
        try:
            for type, one in stream:
                if type == "ERROR":
                    raise KubeExpired(
                        f"the cluster ended a watch: {one.get('message')}: list again"
                    )
                version = one["metadata"]["resourceVersion"]
                self._backoff_s = _BACKOFF_MIN_S
                if type != "BOOKMARK":
                    self._apply_event(type, one)
        finally:
            with self._lock:
                self._stream = None
        return version

    def _apply_event(self, type: str, one: Object) -> None:
        with self._lock:
            uid = one["metadata"]["uid"]
            if type == "DELETED":
                self._objects.pop(uid, None)
            else:
                self._objects[uid] = one
        if type != "DELETED" and self._on_object is not None:
            self._on_object(one)
        self._changed()

    def _set_error(self, error: JobError | None) -> None:
        with self._lock:
            self._error = error
        self._synced.set()
        self._changed()
