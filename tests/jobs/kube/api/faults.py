"""The faults that tests inject into the server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.jobs.kube.api.kind import Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.request import Request

#: The kinds of faults: an HTTP status, no reply, or a connection that is cut. `expire` ends a watch
#: in the middle with "too old"; `hold` blocks requests until `repair`.
WAYS = ("410", "500", "504", "cut", "expire", "hold")


WRITES = ("create", "update", "patch", "delete")


@dataclass
class Fault:
    """A kind of failure for the requests that match it."""

    how: str
    #: `write` matches all verbs that change something.
    verb: str = ""
    #: `!leases` matches all except these.
    plural: str = ""
    namespace: str = ""
    #: A suffix of the user name.
    user: str = ""
    #: Number of requests to serve first (with `hold`: to grant), or of events of a watch.
    after: int = 0
    #: Number of requests that fail; 0 means all.
    times: int = 0

    def concerns(self, user: str, request: Request) -> bool:
        return (
            (self.verb in ("", request.verb) or (self.verb == "write" and request.verb in WRITES))
            and self.namespace in ("", request.namespace)
            and (self.plural in ("", request.kind.plural) or self._is_other(request.kind.plural))
            and user.endswith(self.user)
        )

    def _is_other(self, plural: str) -> bool:
        return self.plural.startswith("!") and self.plural != f"!{plural}"


class Cut(Exception):
    """The connection must be closed without a reply."""


class Faults:
    """All active faults, and the number of requests of each user."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._all: list[Fault] = []
        self._passed: dict[int, int] = {}
        self._mended = 0
        self.held: Counter[str] = Counter()

    def add(self, query: dict[str, str]) -> None:
        numbers = {name: int(query[name]) for name in ("after", "times") if name in query}
        fault = Fault(**{**query, **numbers})  # type: ignore[arg-type]
        if fault.how not in WAYS:
            raise Refusal(404, f"nobody knows how to {fault.how}")
        with self._lock:
            self._all.append(fault)

    def repair(self) -> None:
        """Remove all faults; requests that were held are cut."""
        with self._lock:
            self._all.clear()
            self._passed.clear()
            self._mended += 1
            self._lock.notify_all()

    def meet(self, user: str, request: Request) -> Fault | None:
        """Fail a request that matches a fault; return a fault that affects a watch later.

        Raises:
            Refusal: The fault is an HTTP status.
            Cut: The request gets no reply.
        """
        fault = self._next(user, request)
        if fault is None or fault.how == "expire":
            return fault
        if fault.how.isdigit():
            raise refusal(int(fault.how))
        if fault.how == "hold":
            self._hold(user)
        if fault.how == "cut" and request.verb == "watch":
            return fault
        raise Cut

    def _next(self, user: str, request: Request) -> Fault | None:
        with self._lock:
            for fault in self._all:
                if not fault.concerns(user, request):
                    continue
                passed = self._passed.get(id(fault), 0)
                if fault.how != "hold":
                    self._passed[id(fault)] = passed + 1
                is_watch_event = request.verb == "watch" and fault.how in ("cut", "expire")
                skipped = 0 if is_watch_event else fault.after
                if passed < skipped or (fault.times and passed >= skipped + fault.times):
                    continue
                return fault
        return None

    def done(self, user: str, request: Request) -> None:
        """Count a granted request: `hold` faults with `after` count only granted requests."""
        with self._lock:
            for fault in self._all:
                if fault.how == "hold" and fault.concerns(user, request):
                    self._passed[id(fault)] = self._passed.get(id(fault), 0) + 1

    def _hold(self, user: str) -> None:
        with self._lock:
            self.held[user] += 1
            self._lock.notify_all()
            before = self._mended
            self._lock.wait_for(lambda: self._mended != before)
            self.held[user] -= 1


def refusal(code: int) -> Refusal:
    """Return the error that real servers send with a status that is not the client's fault."""
    told = {
        410: "too old resource version: 1 (2)",
        504: "Timeout: Too large resource version: 2, current: 1",
    }
    return Refusal(code, told.get(code, "told to fail"))


def spoiled(events: Iterator[Object], fault: Fault | None) -> Iterator[Object]:
    """Yield the events of a watch until its fault takes effect.

    Raises:
        Cut: The connection must be closed.
    """
    for number, event in enumerate(events):
        if fault is not None and number >= fault.after:
            if fault.how == "cut":
                raise Cut
            yield {"type": "ERROR", "object": refusal(410).body}
            return
        yield event
