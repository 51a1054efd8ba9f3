"""The log of a process: a bounded sequence of entries in memory-mapped files.

Another process of the host reads the files. It can also read them after this process was killed,
because the kernel keeps the pages. The newest entries are kept: when a file is full and the budget
is used up, the oldest file is removed. Entries that a replay always needs are in a file of their
own, which is never removed.

The length of an entry is written last, so a reader never sees a part of one.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from struct import Struct
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

__all__ = ["LoggedEntry", "RecordLog", "folder_of", "log_files", "read_log"]

# Length of the entry, kind, number of payloads, length of the fields, number, time, actor, two
# values whose meaning depends on the kind.
_HEAD = Struct("<QHHIQQQQQ")
_LENGTH = Struct("<Q")
# Set in the length of a payload that was not kept.
_OMITTED = 1 << 63
# The budget is divided into so many files, of which one is for entries that are always kept.
_FILES = 8
_ALIGN = 8


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


class _File:
    """A file of the log that is being written."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Writing to a page that the disk has no room for would kill the process.
            os.posix_fallocate(fd, 0, length)
            self.map = mmap.mmap(fd, length)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        self.used = 0
        self.length = length


class RecordLog:
    """The log of this process.

    Args:
        folder: A directory for its files, which is created.
        bytes_max: The total length of its files.

    Raises:
        OSError: The directory or a file cannot be created.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._file_len = max(bytes_max // _FILES, mmap.PAGESIZE)
        self._lock = threading.Lock()
        self._number = 0
        self._file_number = 0
        self._kept = _File(folder / "kept", self._file_len)
        self._files = [self._new_file()]

    def append(
        self,
        kind: int,
        actor: int,
        first: int,
        second: int,
        fields: bytes,
        payloads: Sequence[Buffer] = (),
        *,
        is_kept: bool = False,
    ) -> None:
        """Write an entry; a payload that does not fit into a file is replaced by its length.

        Args:
            kind: The kind of the entry.
            actor: The port of the actor.
            first: The first value.
            second: The second value.
            fields: Encoded fields.
            payloads: Contiguous buffers.
            is_kept: Whether the entry is never evicted, as far as there is room.
        """
        views = [memoryview(one).cast("B") for one in payloads]
        lengths = [len(view) for view in views]
        fixed = _HEAD.size + _LENGTH.size * len(views) + len(fields)
        with self._lock:
            kept = [True] * len(views)
            room = self._kept.length - self._kept.used if is_kept else self._file_len
            for at in sorted(range(len(views)), key=lengths.__getitem__, reverse=True):
                if fixed + sum(n for n, k in zip(lengths, kept, strict=True) if k) + _ALIGN <= room:
                    break
                kept[at] = False
            total = fixed + sum(n for n, k in zip(lengths, kept, strict=True) if k)
            total += -total % _ALIGN
            file = self._kept if is_kept else self._file_for(total)
            if file.used + total > file.length:
                return
            self._write(
                file, total, (kind, len(views), len(fields)), (actor, first, second), fields,
                [(view if is_in else None, len(view)) for view, is_in in zip(views, kept, strict=True)],
            )  # fmt: skip

    def _write(
        self,
        file: _File,
        total: int,
        sizes: tuple[int, int, int],
        values: tuple[int, int, int],
        fields: bytes,
        payloads: list[tuple[memoryview | None, int]],
    ) -> None:
        target, start = file.map, file.used
        _HEAD.pack_into(target, start, 0, *sizes, self._number, time.time_ns(), *values)
        at = start + _HEAD.size
        for view, length in payloads:
            _LENGTH.pack_into(target, at, length if view is not None else length | _OMITTED)
            at += _LENGTH.size
        target[at : at + len(fields)] = fields
        at += len(fields)
        for view, length in payloads:
            if view is not None:
                target[at : at + length] = view
                at += length
        _LENGTH.pack_into(target, start, total)
        file.used += total
        self._number += 1

    def _file_for(self, length: int) -> _File:
        file = self._files[-1]
        if file.used + length <= file.length:
            return file
        if len(self._files) >= _FILES - 1:
            oldest = self._files.pop(0)
            oldest.path.unlink(missing_ok=True)
            oldest.map.close()
        self._files.append(self._new_file())
        return self._files[-1]

    def _new_file(self) -> _File:
        self._file_number += 1
        return _File(self._folder / f"{self._file_number:08}", self._file_len)


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

    The process that writes the log may remove a file in the meantime.
    """
    found: dict[str, bytes] = {}
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return found
    for path in paths:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        found[path.name] = content[: _used(memoryview(content))]
    return found


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
