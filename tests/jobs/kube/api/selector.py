"""Label selectors and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.jobs.kube.api.kind import Object
from tests.jobs.kube.api.refusal import Refusal

Choice = Callable[[Object], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")

#: The fields that selectors support; others are rejected, as by a real cluster.
FIELDS = {
    "Pod": {
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.restartPolicy",
        "status.phase",
        "status.podIP",
    },
    "Event": {
        "metadata.name",
        "metadata.namespace",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "type",
    },
    "Job": {"metadata.name", "metadata.namespace", "status.successful"},
    "Secret": {"metadata.name", "metadata.namespace", "type"},
}


def by_label(text: str) -> Choice:
    """Parse a label selector such as `a=b,c!=d,e in (f,g),h,!i`."""
    terms = [_label_term(term.strip()) for term in re.split(r",(?![^(]*\))", text) if term.strip()]
    return lambda object: all(term(object["metadata"].get("labels") or {}) for term in terms)


def _label_term(term: str) -> Callable[[dict[str, str]], bool]:
    if found := _SET.match(term):
        key, verb, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if verb == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if "!=" in term:
        key, value = term.split("!=", 1)
        return lambda labels: labels.get(key.strip()) != value.strip()
    if "=" in term:
        key, value = re.split("==?", term, maxsplit=1)
        return lambda labels: labels.get(key.strip()) == value.strip()
    if " " in term:
        raise Refusal(400, f'unable to parse requirement: found "{term}"')
    if term.startswith("!"):
        return lambda labels: term[1:] not in labels
    return lambda labels: term in labels


def by_field(kind: str, text: str) -> Choice:
    """Parse a field selector such as `metadata.name=x,status.phase!=Running`."""
    terms: list[tuple[list[str], str, bool]] = []
    for term in filter(None, text.split(",")):
        name, sign, value = re.split("(!=|==?)", term, maxsplit=1)
        if name not in FIELDS.get(kind, {"metadata.name", "metadata.namespace"}):
            raise Refusal(400, f"field label not supported: {name}")
        terms.append((name.split("."), value, sign != "!="))
    return lambda object: all(
        (_field(object, path) == value) == wanted for path, value, wanted in terms
    )


def _field(one: Object, path: list[str]) -> str:
    found: Any = one
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def matches(selector: Object, labels: dict[str, str]) -> bool:
    """Return whether the selector of a spec matches these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression(one, labels) for one in selector.get("matchExpressions") or [])


def _expression(one: Object, labels: dict[str, str]) -> bool:
    key, values = one["key"], one.get("values") or []
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[str(one["operator"])]
