"""The events of a watch: each change as seen through the selectors of the watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from tests.jobs.kube.api.api import Api, too_large
from tests.jobs.kube.api.kind import Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.request import Request
from tests.jobs.kube.api.selector import Choice
from tests.jobs.kube.api.store import Change

#: Duration of a watch without a timeout of the client, in seconds.
DURATION_S = 300.0

#: After this time without an event, a bookmark reports the current version.
BOOKMARK_S = 1.0

#: Time that the server waits to catch up with a version that it has not seen.
BEHIND_S = 0.5


class Watch:
    """A watch; iterate over it to get the events for the client."""

    def __init__(self, api: Api, request: Request, ended: threading.Event) -> None:
        """Start at the version that the client requests.

        Raises:
            Refusal: The server has not reached that version.
        """
        self._api = api
        self._request = request
        self._ended = ended
        self._chosen: Choice = api.choice(request)
        self._lasts = float(request.query.get("timeoutSeconds") or DURATION_S)
        text = request.query.get("resourceVersion", "")
        self._version = int(text) if text.isdigit() else 0
        self._is_new = self._version == 0
        if self._version > api.store.version:
            api.store.wait(self._version - 1, BEHIND_S)
        if self._version > api.store.version:
            raise too_large(self._version, api.store.version)

    def __iter__(self) -> Iterator[Object]:
        store, end = self._api.store, time.monotonic() + self._lasts
        if self._is_new:
            yield from self._all_there_is()
        told = time.monotonic()
        while time.monotonic() < end and not self._ended.is_set():
            try:
                for change in store.changes_since(self._version):
                    self._version = change.version
                    if event := self._event(change):
                        told = time.monotonic()
                        yield event
            except Refusal as refusal:
                yield {"type": "ERROR", "object": refusal.body}
                return
            if time.monotonic() - told >= BOOKMARK_S:
                told = time.monotonic()
                if self._request.flag("allowWatchBookmarks"):
                    yield self._bookmark()
            store.wait(self._version, min(BOOKMARK_S, max(0.0, end - time.monotonic())))

    def _all_there_is(self) -> Iterator[Object]:
        store, request = self._api.store, self._request
        with store.changed:
            self._version = store.version
            objects = store.view(request.kind, request.namespace)
        for object in objects:
            if self._chosen(object):
                yield {"type": "ADDED", "object": object}

    def _event(self, change: Change) -> Object | None:
        if change.kind != self._request.kind:
            return None
        before = change.old is not None and self._chosen(change.old)
        after = change.new is not None and self._chosen(change.new)
        if after:
            return {"type": "MODIFIED" if before else "ADDED", "object": change.new}
        if not before or change.old is None:
            return None
        gone = change.new or change.old
        return {"type": "DELETED", "object": gone}

    def _bookmark(self) -> Object:
        kind = self._request.kind
        meta = {"resourceVersion": str(self._version), "creationTimestamp": None}
        object = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
        return {"type": "BOOKMARK", "object": object}
