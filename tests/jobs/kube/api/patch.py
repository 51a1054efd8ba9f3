"""Patch formats: merge patch, strategic merge patch and JSON patch."""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.jobs.kube.api.kind import Object
from tests.jobs.kube.api.refusal import Refusal

#: Lists that a strategic merge patch merges, and the field that identifies their entries.
MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "addresses": "type",
}


def patched(object: Object, content_type: str, patch: Any) -> Any:
    """Return a patched copy of the object."""
    new: Any = copy.deepcopy(object)
    if content_type == "application/merge-patch+json":
        return _merged(new, patch)
    if content_type == "application/strategic-merge-patch+json":
        return _merged(new, patch, is_strategic=True)
    if content_type == "application/json-patch+json":
        for step in patch:
            _take_step(new, step)
        return new
    raise Refusal(415, f"the body of the request was in an unknown format: {content_type}")


def _merged(old: Any, patch: Any, is_strategic: bool = False) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = old if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif is_strategic and isinstance(value, list) and key in MERGE_KEYS:
            result[key] = _merged_list(result.get(key) or [], value, MERGE_KEYS[key])
        else:
            result[key] = _merged(result.get(key), value, is_strategic)
    return result


def _merged_list(old: list[Any], patch: list[Any], key: str) -> list[Any]:
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if "$patch" not in entry]
    by_key = {entry.get(key): entry for entry in old}
    for entry in patch:
        if entry.get("$patch") == "delete":
            by_key.pop(entry.get(key), None)
        else:
            by_key[entry.get(key)] = _merged(by_key.get(entry.get(key)), entry, True)
    return list(by_key.values())


def _take_step(object: Object, step: Object) -> None:
    *parents, last = [
        part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
    ]
    place: Any = object
    try:
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        _change(place, last, step)
    except (KeyError, IndexError) as error:
        message = f"the server rejected our request: no such path {json.dumps(step['path'])}"
        raise Refusal(422, message, "Invalid") from error


def _change(place: Any, last: str, step: Object) -> None:
    match step["op"], place:
        case "add", list():
            place.insert(len(place) if last == "-" else int(last), step["value"])
        case "remove" | "replace" | "test", list():
            _change_known(place, int(last), step)
        case "add", dict():
            place[last] = step["value"]
        case "remove" | "replace" | "test", dict():
            _change_known(place, last, step)
        case operation, _:
            raise Refusal(400, f"unknown operation of a JSON patch: {operation}")


def _change_known(place: Any, key: Any, step: Object) -> None:
    if step["op"] == "remove":
        del place[key]
    elif step["op"] == "replace":
        place[key] = (place[key], step["value"])[1]
    elif place[key] != step["value"]:
        raise Refusal(422, "the server rejected our request: testing a value failed", "Invalid")
