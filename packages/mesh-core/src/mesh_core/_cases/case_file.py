"""The file of a case: a zip file with a manifest, one log for each actor, and payloads.

docs/protocol/cases.md specifies the format. Reading never decodes a payload.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from secrets import token_hex
from typing import NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo
from zlib import compress

from mesh_core._cases.case import Case, Entry, Omitted, RecordedActor
from mesh_core._cases.container import (
    CONTENT_LEN_MAX,
    FILE_LEN_MAX,
    MANIFEST,
    MEMBERS_MAX,
    Container,
)
from mesh_core._cases.errors import CaseError, InvalidPart
from mesh_core._cases.json_text import dump_json, parse_json
from mesh_core._cases.schema import check_case, check_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

__all__ = [
    "CASE_SUFFIX",
    "FORMAT",
    "CaseSummary",
    "actor_fields",
    "read_case",
    "read_message_count",
    "read_summary",
    "write_case",
]

if TYPE_CHECKING:
    Path: TypeAlias = str | os.PathLike[str]

FORMAT = 1
CASE_SUFFIX = ".case"
MANIFEST_LEN_MAX = 64 << 20
# Maximum length of the logs of all actors together, and of their entries.
LOGS_LEN_MAX = 256 << 20
ENTRIES_MAX = 1_000_000
# Maximum length of a log whose messages are counted for a list of cases.
COUNTED_LOG_LEN_MAX = 8 << 20
# Parsed JSON takes many times the memory of its text, and lines are parsed one at a time.
LINE_LEN_MAX = 8 << 20
# Payloads up to this length are in the line of their entry: a member of a zip file takes 220 bytes,
# and creating one takes as long as writing many lines.
INLINE_LEN_MAX = 512
_HASH_LEN = 64
_SAMPLE_LEN = 64 << 10
_MANIFEST_KEYS = {
    "format": "an integer",
    "writer": "a string",
    "job": "a string",
    "created_ns": "an integer",
    "reason": "a string",
    "failed": "an integer or null",
    "versions": "an object",
    "modules": "an object",
    "environ": "an object",
    "actors": "a list",
}
_ACTOR_KEYS = ("mesh", "rank", "class", "proc", "host", "pid", "evicted", "entries")
_DAMAGED = "the file is damaged or no case: copy it again from the machine that saved it"


class CaseSummary(NamedTuple):
    """The content of the manifest of a case.

    Attributes:
        case: The case, whose actors have no entries.
        entry_counts: The number of entries of each actor.
        file_len: The length of the file in bytes.
        content_len: The length of its members in bytes, after decompression.
    """

    case: Case
    entry_counts: tuple[int, ...]
    file_len: int
    content_len: int


def write_case(path: Path, case: Case) -> None:
    """Write a case to a file that only its owner can read.

    The file appears under its name when it is complete. A file with this name is replaced.

    Args:
        path: The path of the file.
        case: The case to write.

    Raises:
        CaseError: The case contains something that the format cannot express, exceeds a limit, or
            the file cannot be written.
    """
    place = os.fspath(path)
    folder, name = os.path.split(place)
    # A reader of the folder ignores names without the suffix of cases.
    coming = os.path.join(folder, f".{name}.{token_hex(8)}.tmp")
    try:
        check_case(case, MANIFEST)
        fd = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                with ZipFile(file, "w", ZIP_DEFLATED, allowZip64=False) as target:
                    _Writer(target).write(case)
                file.flush()
                if file.tell() > FILE_LEN_MAX:
                    raise InvalidPart("the file", f"it has more than {FILE_LEN_MAX} bytes")
                os.fsync(fd)
            os.replace(coming, place)
        except BaseException:
            os.unlink(coming)
            raise
    except InvalidPart as error:
        message = f"cannot write the case {place}: {error.part}: {error.problem}"
        raise CaseError(message, place, error.part) from None
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot write the case {place}: {reason}: choose another folder"
        raise CaseError(message, place) from error


def read_case(path: Path) -> Case:
    """Read a case, and check all of it.

    Args:
        path: The path of the file, which may come from anywhere.

    Raises:
        CaseError: The file cannot be read, is damaged, exceeds a limit or has another format.
    """
    with _opened(path) as source:
        return _Reader(source).read()


def read_summary(path: Path) -> CaseSummary:
    """Read only the manifest of a case, and check it.

    Args:
        path: The path of the file, which may come from anywhere.

    Raises:
        CaseError: As for `read_case`.
    """
    with _opened(path) as source:
        case, counts = _read_manifest(source)
        return CaseSummary(case, counts, source.file_len, source.content_len)


def read_message_count(path: Path) -> int | None:
    """Count the messages of the actor that failed; None if its log is too long for a list.

    Args:
        path: The path of the file, which may come from anywhere.

    Raises:
        CaseError: As for `read_case`.
    """
    with _opened(path) as source:
        case, _ = _read_manifest(source)
        if not case.actors:
            return 0
        name = f"actors/{case.failed or 0}.jsonl"
        if source.content_len_of(name) > COUNTED_LOG_LEN_MAX:
            return None
        return _count_messages(source.read(name), name)


@contextmanager
def _opened(path: Path) -> Iterator[Container]:
    """Open a case, and report everything that is wrong with it as a `CaseError`."""
    place = os.fspath(path)
    try:
        with Container(place) as source:
            yield source
    except (InvalidPart, OSError) as error:
        raise _read_error(place, error) from None


def _count_messages(log: bytes, name: str) -> int:
    count = 0
    for number, line in enumerate(log.splitlines(), 1):
        part = f"{name}, line {number}"
        _check_line(line, part)
        entry = parse_json(line, part)
        count += type(entry) is dict and entry.get("kind") == "message"
    return count


class _Writer:
    """Writes the members of a case."""

    def __init__(self, target: ZipFile) -> None:
        self._target = target
        self._written: set[str] = set()
        self._content_len = 0

    def write(self, case: Case) -> None:
        # The manifest is first, so an incomplete copy of a file can still be identified.
        self._add(MANIFEST, dump_json(_manifest(case), MANIFEST), MANIFEST_LEN_MAX)
        if sum(len(actor.entries) for actor in case.actors) > ENTRIES_MAX:
            raise InvalidPart("the actors", f"they have more than {ENTRIES_MAX} entries")
        logs_len = 0
        for index, actor in enumerate(case.actors):
            name = f"actors/{index}.jsonl"
            log = b"".join(self._lines(actor, name))
            logs_len += len(log)
            self._add(name, log, LOGS_LEN_MAX - logs_len + len(log))

    def _lines(self, actor: RecordedActor, name: str) -> Iterator[bytes]:
        last = -1
        for number, entry in enumerate(actor.entries, 1):
            part = f"{name}, line {number}"
            check_entry(entry, part)
            last = _check_order(entry, last, part)
            value = {
                "number": entry.number,
                "time_ns": entry.time_ns,
                "kind": entry.kind,
                "fields": entry.fields,
                "payloads": [self._reference(payload) for payload in entry.payloads],
            }
            line = dump_json(value, part)
            _check_line(line, part)
            yield line + b"\n"

    def _reference(self, payload: bytes | Omitted) -> object:
        """Return the reference to a payload; write the payload if it is not in the file yet."""
        if isinstance(payload, Omitted):
            return {"length": payload.length, "reason": payload.reason}
        if len(payload) <= INLINE_LEN_MAX:
            return {"base64": b64encode(payload).decode()}
        digest = sha256(payload).hexdigest()
        if digest not in self._written:
            self._written.add(digest)
            self._add(f"payloads/{digest}", payload, CONTENT_LEN_MAX)
        return digest

    def _add(self, name: str, content: bytes, len_max: int) -> None:
        self._content_len += len(content)
        if len(content) > len_max:
            raise InvalidPart(name, f"it has {len(content)} bytes, more than {len_max}")
        if self._content_len > CONTENT_LEN_MAX:
            raise InvalidPart(name, f"the case has more than {CONTENT_LEN_MAX} bytes")
        if len(self._target.infolist()) >= MEMBERS_MAX:
            raise InvalidPart(name, f"the case has more than {MEMBERS_MAX} members")
        # Without a date, equal cases are equal files.
        member = ZipInfo(name)
        member.compress_type = ZIP_DEFLATED if _is_compressible(content) else ZIP_STORED
        member.external_attr = 0o600 << 16
        # The fastest level: a case is written while the program waits.
        self._target.writestr(member, content, compresslevel=1)


class _Reader:
    """Reads all members of a case."""

    def __init__(self, source: Container) -> None:
        self._source = source
        self._payloads: dict[str, bytes] = {}
        self._logs_len = 0

    def read(self) -> Case:
        case, counts = _read_manifest(self._source)
        actors = tuple(
            actor._replace(entries=self._read_log(f"actors/{index}.jsonl", count))
            for index, (actor, count) in enumerate(zip(case.actors, counts, strict=True))
        )
        used = 1 + len(actors) + len(self._payloads)
        if used != len(self._source.names):
            raise InvalidPart("the file", "it contains members that no entry refers to")
        return case._replace(actors=actors)

    def _read_log(self, name: str, count: int) -> tuple[Entry, ...]:
        log = self._source.read(name, LOGS_LEN_MAX - self._logs_len)
        self._logs_len += len(log)
        lines = log.split(b"\n")
        if lines.pop() or len(lines) != count:
            raise InvalidPart(name, f"it must have {count} complete lines, as the manifest says")
        entries: list[Entry] = []
        last = -1
        for number, line in enumerate(lines, 1):
            part = f"{name}, line {number}"
            _check_line(line, part)
            entry = self._parse_entry(line, part)
            last = _check_order(entry, last, part)
            entries.append(entry)
        return tuple(entries)

    def _parse_entry(self, line: bytes, part: str) -> Entry:
        value = parse_json(line, part)
        if type(value) is not dict:
            raise InvalidPart(part, "it must be an object")
        for key in ("number", "time_ns", "kind", "fields", "payloads"):
            if key not in value:
                raise InvalidPart(part, f'"{key}" is missing')
        references = value["payloads"]
        if type(references) is not list:
            raise InvalidPart(part, '"payloads" must be a list')
        payloads = tuple(self._resolve(one, part) for one in references)
        entry = Entry(value["number"], value["time_ns"], value["kind"], value["fields"], payloads)
        check_entry(entry, part)
        return entry

    def _resolve(self, reference: Any, part: str) -> bytes | Omitted:
        """Return the payload of a reference."""
        if type(reference) is str and len(reference) == _HASH_LEN:
            return self._read_payload(reference, part)
        if type(reference) is dict:
            if reference.keys() == {"length", "reason"}:
                return Omitted(**reference)
            if reference.keys() == {"base64"} and type(reference["base64"]) is str:
                try:
                    payload = b64decode(reference["base64"], validate=True)
                except (Base64Error, ValueError):
                    raise InvalidPart(part, "a payload is not base64") from None
                if len(payload) <= INLINE_LEN_MAX:
                    return payload
        raise InvalidPart(part, "a payload must be a SHA-256, base64, or a length and a reason")

    def _read_payload(self, digest: str, part: str) -> bytes:
        payload = self._payloads.get(digest)
        if payload is None:
            name = f"payloads/{digest}"
            if name not in self._source.names:
                raise InvalidPart(part, f"payload {digest!a} is missing")
            payload = self._source.read(name)
            if sha256(payload).hexdigest() != digest:
                raise InvalidPart(name, "its SHA-256 differs from its name")
            self._payloads[digest] = payload
        return payload


def _manifest(case: Case) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "writer": _own_version(),
        "job": case.job.hex(),
        "created_ns": case.created_ns,
        "reason": case.reason,
        "failed": case.failed,
        "versions": case.versions,
        "modules": case.modules,
        "environ": case.environ,
        "actors": [{**actor_fields(actor), "entries": len(actor.entries)} for actor in case.actors],
    }


def actor_fields(actor: RecordedActor) -> dict[str, Any]:
    """Return an actor without its entries as a JSON value."""
    fields = {
        "mesh": actor.mesh,
        "rank": actor.rank,
        "class": actor.class_name,
        "proc": actor.proc,
        "host": actor.host,
        "pid": actor.pid,
        "evicted": actor.evicted,
    }
    return {**fields, "ended": actor.ended} if actor.ended else fields


def _read_manifest(source: Container) -> tuple[Case, tuple[int, ...]]:
    """Return the case without entries, and the number of entries of each actor."""
    value = parse_json(source.read(MANIFEST, MANIFEST_LEN_MAX), MANIFEST)
    if type(value) is not dict:
        raise InvalidPart(MANIFEST, "it must be an object")
    _check_format(value)
    for key, description in _MANIFEST_KEYS.items():
        if key not in value:
            raise InvalidPart(MANIFEST, f'"{key}" is missing: it must be {description}')
    if type(value["actors"]) is not list:
        raise InvalidPart(MANIFEST, '"actors" must be a list')
    actors, counts = [], []
    for index, one in enumerate(value["actors"]):
        part = f"{MANIFEST}, actor {index}"
        if type(one) is not dict or any(key not in one for key in _ACTOR_KEYS):
            raise InvalidPart(part, f"it must be an object with {', '.join(_ACTOR_KEYS)}")
        count = one["entries"]
        if type(count) is not int or not 0 <= count <= ENTRIES_MAX:
            raise InvalidPart(part, f'"entries" must be an integer from 0 to {ENTRIES_MAX}')
        actors.append(
            RecordedActor(
                mesh=one["mesh"],
                rank=one["rank"],
                class_name=one["class"],
                proc=one["proc"],
                host=one["host"],
                pid=one["pid"],
                evicted=one["evicted"],
                entries=(),
                ended=one.get("ended", ""),
            )
        )
        counts.append(count)
    if sum(counts) > ENTRIES_MAX:
        raise InvalidPart(MANIFEST, f"the actors have more than {ENTRIES_MAX} entries")
    case = Case(
        job=_parse_job(value["job"]),
        created_ns=value["created_ns"],
        reason=value["reason"],
        failed=value["failed"],
        versions=value["versions"],
        modules=value["modules"],
        environ=value["environ"],
        actors=tuple(actors),
    )
    check_case(case, MANIFEST)
    return case, tuple(counts)


def _check_format(manifest: dict[str, Any]) -> None:
    number = manifest.get("format")
    if type(number) is not int or number < 1:
        raise InvalidPart(MANIFEST, '"format" must be an integer from 1')
    if number > FORMAT:
        # Other formats have the number and the version of their writer in the same place.
        writer = manifest.get("writer")
        newer = f"{writer[:40]} or newer" if type(writer) is str else "a newer version"
        problem = f"it has format {number}, and mesh-core {_own_version()} reads format {FORMAT}"
        raise InvalidPart(MANIFEST, problem, f"install torchmesh-core {newer}")


def _parse_job(value: Any) -> bytes:
    if type(value) is not str or not value.isascii() or len(value) != 32 or not value.isalnum():
        raise InvalidPart(MANIFEST, '"job" must be 32 hexadecimal digits')
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise InvalidPart(MANIFEST, '"job" must be 32 hexadecimal digits') from None


def _is_compressible(content: bytes) -> bool:
    """Return whether it is worthwhile to deflate a member, judged by its middle if it is long.

    Deflating the floating-point numbers of a model takes a second for 10 MiB, and saves nothing.
    """
    if len(content) <= _SAMPLE_LEN:
        return True
    start = (len(content) - _SAMPLE_LEN) // 2
    return len(compress(content[start : start + _SAMPLE_LEN], 1)) < _SAMPLE_LEN * 0.9


def _check_line(line: bytes, part: str) -> None:
    if len(line) > LINE_LEN_MAX:
        raise InvalidPart(part, f"it has {len(line)} bytes, more than {LINE_LEN_MAX}")


def _check_order(entry: Entry, last: int, part: str) -> int:
    if entry.number <= last:
        raise InvalidPart(part, f'"number" must be greater than {last}')
    return entry.number


def _own_version() -> str:
    try:
        return version("torchmesh-core")
    except PackageNotFoundError:
        return "unknown"


def _read_error(place: str, error: InvalidPart | OSError) -> CaseError:
    if isinstance(error, InvalidPart):
        remedy = error.remedy or _DAMAGED
        message = f"cannot read the case {place}: {error.part}: {error.problem}: {remedy}"
        return CaseError(message, place, error.part)
    reason = error.strerror or str(error)
    return CaseError(f"cannot read the case {place}: {reason}: check the path", place)
