"""The types and limits of everything in a case, used by the writer and the reader of its file.

The annotations of `Case` describe a valid case. In a case that was read from a file, the attributes
may have arbitrary JSON values until these functions have validated it.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode

from mesh_core._cases.case import Omitted
from mesh_core._cases.errors import InvalidPart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from mesh_core._cases.case import Case, Entry, RecordedActor

    Check = Callable[[Any], bool]

__all__ = ["ACTORS_MAX", "OMISSION_REASONS", "check_actor", "check_case", "check_entry"]

ACTORS_MAX = 4_096
OMISSION_REASONS = ("budget", "redacted")
# Integers fit into 64 bits with a sign.
_INT_MAX = 2**63 - 1
_DIMS_MAX = 64
_RANKS_MAX = 1 << 20
_JOB_LEN = 16
_SHA256 = re.compile("[0-9a-f]{64}")


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _INT_MAX


def _is_base64(value: Any) -> bool:
    if type(value) is not str or not value.isascii():
        return False
    try:
        b64decode(value, validate=True)
    except binascii.Error:
        return False
    return True


def _is_extent(value: Any) -> bool:
    return (
        type(value) is dict
        and len(value) <= _DIMS_MAX
        and all(type(dim) is str and _is_count(size) for dim, size in value.items())
    )


def _is_texts(value: Any) -> bool:
    """Return whether a value is a dict from text to text."""
    return type(value) is dict and all(
        type(name) is str and type(text) is str for name, text in value.items()
    )


def _is_ranks(value: Any) -> bool:
    return type(value) is list and len(value) <= _RANKS_MAX and all(map(_is_count, value))


def _is_port(value: object) -> bool:
    return type(value) is str and re.fullmatch(r"[0-9a-f]{1,16}", value) is not None


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _choice(*texts: str) -> Check:
    return lambda value: type(value) is str and value in texts


_TEXT = (_is_text, "a string")
_COUNT = (_is_count, "an integer from 0 to 2^63 - 1")
_OPTIONAL_COUNT = (_optional(_is_count), "null or an integer from 0 to 2^63 - 1")

# The fields of each kind of entry: the check of the value, and its description.
_FIELDS: Mapping[str, Mapping[str, tuple[Check, str]]] = {
    "begin": {
        "mesh": _TEXT,
        "rank": _COUNT,
        "extent": (_is_extent, f"an object with up to {_DIMS_MAX} sizes"),
        "class": _TEXT,
        "port": (_optional(_is_port), "null, absent, or up to 16 hexadecimal digits"),
    },
    "message": {
        "n": _COUNT,
        "endpoint": _TEXT,
        "rank": _COUNT,
        "meta": (_is_base64, "base64"),
        "from": _TEXT,
        "replies": (lambda value: type(value) is bool, "true or false"),
    },
    "outcome": {
        "n": _COUNT,
        "status": (_choice("value", "raised", "cancelled"), "value, raised or cancelled"),
        "error": (_optional(_is_text), "a string, null or absent"),
    },
    "call": {
        "k": _COUNT,
        "n": _OPTIONAL_COUNT,
        "mesh": _TEXT,
        "endpoint": _TEXT,
        "ranks": (_is_ranks, "a list of ranks"),
    },
    "reply": {"k": _COUNT, "rank": _COUNT, "code": _COUNT},
    "timeout": {"k": _COUNT, "error": _TEXT},
    "received": {
        "c": _COUNT,
        "kind": _COUNT,
        "code": _COUNT,
        "rank": _COUNT,
        "meta": (_is_base64, "base64"),
        "from": _TEXT,
    },
    "read": {
        "n": _OPTIONAL_COUNT,
        "source": (_choice("time", "random", "environ"), "time, random or environ"),
        "key": (_optional(_is_text), "a string or null"),
        # The parser and the encoder of JSON check it.
        "value": (lambda value: True, "a JSON value"),
    },
    "failed": {"error": _TEXT},
}
_MAY_BE_ABSENT = frozenset({("begin", "port"), ("outcome", "error")})
# Number of payloads of each kind: the minimum and the maximum.
_PAYLOADS_MAX = 1_024
_PAYLOAD_COUNTS = {
    "begin": (0, _PAYLOADS_MAX),
    "message": (1, _PAYLOADS_MAX),
    "outcome": (0, _PAYLOADS_MAX),
    "call": (1, _PAYLOADS_MAX),
    "reply": (0, _PAYLOADS_MAX),
    "timeout": (0, 0),
    "received": (1, _PAYLOADS_MAX),
    "read": (0, 0),
    "failed": (0, _PAYLOADS_MAX),
}


def check_case(case: Case, part: str) -> None:
    """Check everything in a case but its entries.

    Args:
        case: A case whose attributes may have any type.
        part: The part of the file that contains it, for error messages.

    Raises:
        InvalidPart: Something is invalid.
    """
    if type(case.job) is not bytes or len(case.job) != _JOB_LEN:
        raise InvalidPart(part, f'"job" must be {_JOB_LEN} bytes')
    _expect(_is_count(case.created_ns), part, "created_ns", _COUNT[1])
    _expect(_is_text(case.reason), part, "reason", "a string")
    _expect(_is_texts(case.versions), part, "versions", "an object of strings")
    _expect(_is_texts(case.environ), part, "environ", "an object of strings")
    modules = case.modules
    is_valid = type(modules) is dict and all(
        type(name) is str
        and _is_texts(module)
        and ("sha256" not in module or _SHA256.fullmatch(module["sha256"]) is not None)
        for name, module in modules.items()
    )
    _expect(is_valid, part, "modules", "an object of objects with a SHA-256 in hexadecimal")
    is_valid = type(case.actors) is tuple and len(case.actors) <= ACTORS_MAX
    _expect(is_valid, part, "actors", f"a list of up to {ACTORS_MAX} actors")
    for index, actor in enumerate(case.actors):
        check_actor(actor, f"{part}, actor {index}")
    is_valid = case.failed is None or (
        type(case.failed) is int and 0 <= case.failed < len(case.actors)
    )
    _expect(is_valid, part, "failed", "null or the index of an actor")


def check_actor(actor: RecordedActor, part: str) -> None:
    """Check everything in a recorded actor but its entries.

    Raises:
        InvalidPart: Something is invalid.
    """
    for name in ("mesh", "class_name", "proc", "host", "ended"):
        key = "class" if name == "class_name" else name
        _expect(_is_text(getattr(actor, name)), part, key, "a string")
    for name in ("rank", "pid", "evicted"):
        _expect(_is_count(getattr(actor, name)), part, name, _COUNT[1])


def check_entry(entry: Entry, part: str) -> None:
    """Check an entry.

    Fields that this version does not know are permitted, so a later version may add some.

    Raises:
        InvalidPart: Something is invalid.
    """
    _expect(_is_count(entry.number), part, "number", _COUNT[1])
    _expect(_is_count(entry.time_ns), part, "time_ns", _COUNT[1])
    _expect(type(entry.fields) is dict, part, "fields", "an object")
    known = _FIELDS.get(entry.kind) if type(entry.kind) is str else None
    if known is None:
        raise InvalidPart(part, f'"kind" must be one of {", ".join(_FIELDS)}')
    for name, (check, description) in known.items():
        if name in entry.fields:
            _expect(check(entry.fields[name]), part, name, description)
        elif (entry.kind, name) not in _MAY_BE_ABSENT:
            raise InvalidPart(part, f'"{name}" is missing in an entry of kind {entry.kind}')
    least, most = _PAYLOAD_COUNTS[entry.kind]
    if type(entry.payloads) is not tuple or not least <= len(entry.payloads) <= most:
        raise InvalidPart(
            part, f"an entry of kind {entry.kind} must have {least} to {most} payloads"
        )
    for payload in entry.payloads:
        if type(payload) is Omitted:
            is_valid = _is_count(payload.length) and payload.reason in OMISSION_REASONS
            _expect(is_valid, part, "payloads", "a length and the reason budget or redacted")
        elif type(payload) is not bytes:
            raise InvalidPart(part, "a payload must be bytes")


def _expect(is_valid: bool, part: str, name: str, description: str) -> None:
    if not is_valid:
        raise InvalidPart(part, f'"{name}" must be {description}')
