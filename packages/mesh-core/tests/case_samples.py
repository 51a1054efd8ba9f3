"""Cases for tests: valid ones, and files that were put together by hand."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from typing import TYPE_CHECKING

from mesh_core._cases.case import Case, Entry, Omitted, RecordedActor
from mesh_core._cases.case_file import write_case
from mesh_core._serialization.pickler import encode, encode_value

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    Members = list[tuple[str, bytes]]

THRESHOLD = 1_024
# The pickler passes bytes from 64 KiB on to its file as a separate object.
LARGE = bytes(range(256)) * 300


class MakesMarker:
    """An object whose unpickling creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.marker, "w")


def arguments(*args: Any, **kwargs: Any) -> tuple[bytes, ...]:
    body, buffers = encode(args, kwargs, THRESHOLD)
    return (bytes(body), *map(bytes, buffers))


def value(one: object) -> tuple[bytes, ...]:
    body, buffers = encode_value(one, THRESHOLD)
    return (bytes(body), *map(bytes, buffers))


def error(text: str) -> bytes:
    """Return an exception as `encode_exception` does, without lines of this file."""
    return value((f"Traceback (most recent call last):\nValueError: {text}\n", []))[0]


def message(number: int, n: int, endpoint: str, payloads: tuple[bytes | Omitted, ...]) -> Entry:
    fields = {"n": n, "endpoint": endpoint, "rank": 0, "meta": "AAE=", "from": "0.0"}
    return Entry(number, 1_000 + number, "message", {**fields, "replies": True}, payloads)


def entries(batch: object, hostile: object = None) -> tuple[Entry, ...]:
    """Return entries of every kind, with payloads of every form."""
    begin = {"mesh": "trainers", "rank": 0, "extent": {"gpus": 2}, "class": "train:Trainer"}
    call = {"k": 1, "n": 2, "mesh": "params", "endpoint": "get", "ranks": [0, 1]}
    return (
        Entry(0, 1_000, "begin", begin, value((3, "x"))),
        message(3, 1, "load", (Omitted(1 << 22, "budget"),)),
        Entry(4, 1_004, "outcome", {"n": 1, "status": "value"}, value(None)),
        message(5, 2, "step", arguments(batch, LARGE, hostile, scale=0.5)),
        Entry(6, 1_006, "call", call, arguments("w")),
        Entry(7, 1_007, "reply", {"k": 1, "rank": 1, "code": 0}, value([1.5, {2, 3}])),
        Entry(8, 1_008, "reply", {"k": 1, "rank": 0, "code": 1}, (error("no w"),)),
        Entry(9, 1_009, "read", {"n": 2, "source": "time", "key": "time.time", "value": 1.5}),
        Entry(10, 1_010, "read", {"n": 2, "source": "random", "key": None, "value": [7, 2**70]}),
        Entry(11, 1_011, "outcome", {"n": 2, "status": "raised", "error": "ValueError: bad"}),
        Entry(12, 1_012, "failed", {"error": "ValueError: bad"}, (error("bad"),)),
    )


def sample(batch: object = (1, 2), hostile: object = None, **changes: Any) -> Case:
    """Return a case with two actors."""
    module = {"file": "/src/train.py", "sha256": "ab" * 32, "source": "class Trainer: ...\n"}
    failed = RecordedActor(
        "trainers", 0, "train:Trainer", "0.1", "w0", 41, 2, entries(batch, hostile)
    )
    other = RecordedActor("params", 1, "train:Params", "0.2", "w0", 42, 0, ())
    case = Case(
        job=bytes(range(16)),
        created_ns=1_700_000_000_000_000_000,
        reason="trainers[0] failed: ValueError: bad",
        failed=0,
        versions={"python": "3.11.7", "numpy": "2.4.6"},
        modules={"train": module},
        environ={"MESH_SEED": "7"},
        actors=(failed, other),
    )
    return case._replace(**changes)


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as source:
        return [(name, source.read(name)) for name in source.namelist()]


def members(folder: Path, case: Case) -> dict[str, bytes]:
    """Return the members of the file of a case."""
    write_case(folder / "of-members.case", case)
    return dict(members_of(folder / "of-members.case"))


def pack(path: Path, content: Iterable[tuple[str, bytes]], method: int = 8) -> None:
    """Write a zip file with any members."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as file:
        for name, data in content:
            # Unlike `writestr`, an open member does not warn about a name that exists.
            file.NameToInfo.pop(name, None)
            member = zipfile.ZipInfo()
            # The constructor would normalize the name.
            member.filename = name
            member.compress_type = method
            file.writestr(member, data)
    path.write_bytes(target.getvalue())


def with_json(content: dict[str, bytes], name: str, **changes: Any) -> dict[str, bytes]:
    """Return members with other values in the first line of one of them; `...` deletes one."""
    first, separator, rest = content[name].partition(b"\n")
    changed = {**json.loads(first), **changes}
    kept = {key: one for key, one in changed.items() if one is not ...}
    return {**content, name: json.dumps(kept).encode() + separator + rest}


def hostile_payload(marker: Path) -> bytes:
    return pickle.dumps(((MakesMarker(marker),), {}), 5)
