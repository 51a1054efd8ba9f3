"""Structural schemas of custom resources: defaulting, pruning and validation."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from tests.jobs.kube.api.kind import Object

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}

Cause = tuple[str, str]


def completed(schema: Object, value: Any) -> Any:
    """Return a value with defaults, without the fields that are unknown to the schema."""
    if isinstance(value, list) and "items" in schema:
        return [completed(schema["items"], one) for one in value]
    if not isinstance(value, dict):
        return value
    fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
    found: Object = {}
    for name, one in value.items():
        if name in fields:
            found[name] = completed(fields[name], one)
        elif isinstance(rest, dict):
            found[name] = completed(rest, one)
        elif rest or schema.get("x-kubernetes-preserve-unknown-fields"):
            found[name] = one
    for name, field in fields.items():
        if name not in found and "default" in field:
            found[name] = copy.deepcopy(field["default"])
    return found


def problems(schema: Object, value: Any, path: str) -> Iterator[Cause]:
    """Yield the problems of a value with the path of the field."""
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            yield path, "Invalid value: must be an integer or a string"
        return
    wanted = schema.get("type", "")
    is_wrong = isinstance(value, bool) and wanted in ("integer", "number")
    if wanted and (is_wrong or not isinstance(value, _TYPES[wanted])):
        yield path, f'Invalid value: must be of type {wanted}: "{type(value).__name__}"'
        return
    yield from _limits(schema, value, path)
    if isinstance(value, dict):
        yield from _fields(schema, value, path)
    if isinstance(value, list):
        yield from _items(schema, value, path)
    choices = schema.get("anyOf")
    if choices and not any(not list(problems(one, value, path)) for one in choices):
        yield path, "Invalid value: must validate at least one schema (anyOf)"


def _limits(schema: Object, value: Any, path: str) -> Iterator[Cause]:
    if "enum" in schema and value not in schema["enum"]:
        told = ", ".join(f'"{one}"' for one in schema["enum"])
        yield path, f'Unsupported value: "{value}": supported values: {told}'
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield path, f"Invalid value: should match '{schema['pattern']}'"
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield path, "Invalid value: its length is out of bounds"
    if isinstance(value, (int, float)):
        if value < schema.get("minimum", value):
            minimum = schema["minimum"]
            yield path, f"Invalid value: should be greater than or equal to {minimum}"
        if value > schema.get("maximum", value):
            yield path, f"Invalid value: should be less than or equal to {schema['maximum']}"


def _fields(schema: Object, value: Object, path: str) -> Iterator[Cause]:
    for name in schema.get("required", []):
        if name not in value:
            yield f"{path}.{name}", "Required value"
    fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name, one in value.items():
        inner = fields.get(name, rest if isinstance(rest, dict) else None)
        if inner is not None:
            yield from problems(inner, one, f"{path}.{name}")


def _items(schema: Object, value: list[Any], path: str) -> Iterator[Cause]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield path, "Invalid value: has too few or too many items"
    for number, one in enumerate(value):
        yield from problems(schema.get("items", {}), one, f"{path}[{number}]")
    if keys := schema.get("x-kubernetes-list-map-keys"):
        seen = []
        for number, one in enumerate(value):
            mine = [one.get(key) for key in keys if isinstance(one, dict)]
            if mine in seen:
                yield f"{path}[{number}]", f'Duplicate value: {{"{keys[0]}":"{mine[0]}"}}'
            seen.append(mine)
