"""Reading the log of the messages that the actors of a process receive.

The core writes the log to memory-mapped files, which other processes of the host can read, even
after the process was killed. docs/protocol/recordings.md specifies their format.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LoggedEntry", "folder_of", "kept_entries", "log_files", "read_log"]

# Length of the entry, kind, number of payloads, length of the fields, number, time, actor, two
# values whose meaning depends on the kind.
_HEAD = Struct("<QHHIQQQQQ")
_LENGTH = Struct("<Q")
# Set in the length of a payload that was not kept.
_OMITTED = 1 << 63


class LoggedEntry(NamedTuple):
    """An entry as it is in the log.

    Attributes:
        number: Its position among all entries of the process.
        time_ns: When it was written, in nanoseconds since the epoch.
        kind: Its kind.
        actor: The port of the actor.
        first: The first value.
        second: The second value.
        fields: Encoded fields.
        payloads: The payloads; for one that was not kept, its length.
    """

    number: int
    time_ns: int
    kind: int
    actor: int
    first: int
    second: int
    fields: bytes
    payloads: tuple[bytes | int, ...]


def folder_of(directory: Path, slot: int, incarnation: int) -> Path:
    """Return the directory of the log of a process, inside the directory of its job."""
    return directory / f"record-{slot}-{incarnation}"


def read_log(files: dict[str, bytes]) -> list[LoggedEntry]:
    """Return the entries of a log, by number.

    Args:
        files: The contents of its files, by name.

    Raises:
        ValueError: A file is damaged.
    """
    entries = [entry for content in files.values() for entry in _entries(memoryview(content))]
    return sorted(entries, key=lambda entry: entry.number)


def log_files(folder: Path) -> dict[str, bytes]:
    """Return the used parts of the files of a log, by name; empty if the log does not exist.

    The process that writes the log may reuse a file during the read; such a file is left out.
    """
    found: dict[str, bytes] = {}
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return found
    for path in paths:
        try:
            content = path.read_bytes()
            # If the file was reused during the read, it has another name and mixed content.
            path.lstat()
        except FileNotFoundError:
            continue
        found[path.name] = content[: _used(memoryview(content))]
    return found


def kept_entries(folder: Path) -> list[LoggedEntry]:
    """Return the entries of a log that are never evicted; empty if the log does not exist."""
    try:
        content = (folder / "kept").read_bytes()
    except FileNotFoundError:
        return []
    return list(_entries(memoryview(content)[: _used(memoryview(content))]))


def _used(content: memoryview) -> int:
    at = 0
    while at + _HEAD.size <= len(content):
        (total,) = _LENGTH.unpack_from(content, at)
        if total < _HEAD.size or at + total > len(content):
            break
        at += total
    return at


def _entries(content: memoryview) -> Iterator[LoggedEntry]:
    at = 0
    while at + _HEAD.size <= len(content):
        total, kind, count, fields_len, number, time_ns, actor, first, second = _HEAD.unpack_from(
            content, at
        )
        if total == 0:
            return
        end = at + total
        here = at + _HEAD.size
        lengths_end = here + _LENGTH.size * count
        if end > len(content) or lengths_end + fields_len > end:
            raise ValueError(f"the log is damaged at byte {at}")
        lengths = [_LENGTH.unpack_from(content, here + _LENGTH.size * k)[0] for k in range(count)]
        here = lengths_end + fields_len
        fields = bytes(content[lengths_end:here])
        payloads: list[bytes | int] = []
        for length in lengths:
            if length & _OMITTED:
                payloads.append(length & ~_OMITTED)
                continue
            if here + length > end:
                raise ValueError(f"the log is damaged at byte {at}")
            payloads.append(bytes(content[here : here + length]))
            here += length
        yield LoggedEntry(number, time_ns, kind, actor, first, second, fields, tuple(payloads))
        at = end
