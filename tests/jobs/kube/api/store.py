"""All objects of the cluster, and the log of changes that watches read."""

from __future__ import annotations

import bisect
import datetime
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.jobs.kube.api.kind import Kind, Object
from tests.jobs.kube.api.refusal import Refusal, not_found

#: Number of changes in the log; a watch that starts before them is too old.
LOG_LEN_MAX = 20_000

_Value = TypeVar("_Value")


def now_text() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def copied(value: _Value) -> _Value:
    """Return a deep copy of an object, which consists of dicts, lists and immutable values."""
    new: Any = value
    if isinstance(value, dict):
        new = {key: copied(each) for key, each in value.items()}
    elif isinstance(value, list):
        new = [copied(each) for each in value]
    return new  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Change:
    """An object before and after a change; either is missing if it was created or deleted."""

    version: int
    kind: Kind
    old: Object | None
    new: Object | None


class Store:
    """Objects by kind, namespace and name; each change gets the next resource version.

    A stored object never changes: a change replaces it. `view` and `changes_since` return stored
    objects, which must not be modified; all other methods return copies.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self._oldest = 1000
        self._objects: defaultdict[Kind, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._log: list[Change] = []

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        with self.changed:
            found = self._objects[kind].get((namespace, name))
        if found is None:
            raise not_found(kind.resource, name)
        return copied(found)

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        with self.changed:
            found = self._objects[kind].get((namespace, name))
        return copied(found)

    def every(self, kind: Kind, namespace: str = "") -> list[Object]:
        """Return all objects of a kind, in one namespace or in all, sorted by name."""
        return [copied(one) for one in self.view(kind, namespace)]

    def view(self, kind: Kind, namespace: str = "") -> list[Object]:
        """Return the same objects as `every`, but without copying them."""
        with self.changed:
            found = list(self._objects[kind].items())
        return [one for (where, _), one in sorted(found, key=_key) if namespace in ("", where)]

    def create(self, kind: Kind, object: Object) -> Object:
        """Add an object with a new uid."""
        meta = object["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        with self.changed:
            if key in self._objects[kind]:
                message = f'{kind.resource} "{meta["name"]}" already exists'
                raise Refusal(409, message, "AlreadyExists", {"name": meta["name"]})
            meta.update(uid=str(uuid.uuid4()), creationTimestamp=now_text(), generation=1)
            self._keep(kind, key, None, object)
        return copied(object)

    def replace(self, kind: Kind, object: Object) -> Object:
        """Replace an object if its `resourceVersion` is current.

        Raises:
            Refusal: The object does not exist any more, or has changed.
        """
        meta = object["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        with self.changed:
            old = self._objects[kind].get(key)
            if old is None or old["metadata"]["uid"] != meta["uid"]:
                raise not_found(kind.resource, meta["name"])
            if meta.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
                message = (
                    f'Operation cannot be fulfilled on {kind.resource} "{meta["name"]}": the object'
                    " has been modified; please apply your changes to the latest version"
                )
                raise Refusal(409, message)
            if _but_version(old) == _but_version(object):
                return copied(old)
            if old.get("spec") != object.get("spec"):
                meta["generation"] = old["metadata"].get("generation", 1) + 1
            self._keep(kind, key, old, object)
        return copied(object)

    def remove(self, kind: Kind, namespace: str, name: str) -> Object:
        with self.changed:
            old = self._objects[kind].pop((namespace, name), None)
            if old is None:
                raise not_found(kind.resource, name)
            self.version += 1
            meta = {**old["metadata"], "resourceVersion": str(self.version)}
            gone = {**old, "metadata": meta}
            self._tell(Change(self.version, kind, gone, None))
        return copied(gone)

    def _keep(self, kind: Kind, key: tuple[str, str], old: Object | None, new: Object) -> None:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        kept = self._objects[kind][key] = copied(new)
        self._tell(Change(self.version, kind, old, kept))

    def _tell(self, change: Change) -> None:
        self._log.append(change)
        if len(self._log) > LOG_LEN_MAX:
            self._oldest = self._log[LOG_LEN_MAX // 2].version
            del self._log[: LOG_LEN_MAX // 2 + 1]
        self.changed.notify_all()

    def forget_history(self) -> None:
        """Clear the log: every watch from an older version is too old afterwards."""
        with self.changed:
            self._log.clear()
            self._oldest = self.version
            self.changed.notify_all()

    def changes_since(self, version: int) -> Iterator[Change]:
        """Yield the changes after a version.

        Raises:
            Refusal: The log does not reach back to that version.
        """
        with self.changed:
            if version < self._oldest:
                message = f"too old resource version: {version} ({self._oldest})"
                raise Refusal(410, message)
            first = bisect.bisect_right(self._log, version, key=lambda change: change.version)
            found = self._log[first:]
        yield from found

    def wait(self, version: int, seconds: float) -> None:
        """Return when a later version exists or the time is over."""
        with self.changed:
            self.changed.wait_for(lambda: self.version > version, seconds)


def _key(item: tuple[tuple[str, str], Object]) -> tuple[str, str]:
    return item[0]


def _but_version(object: Object) -> Object:
    meta = {key: value for key, value in object["metadata"].items() if key != "resourceVersion"}
    return {**object, "metadata": meta}
