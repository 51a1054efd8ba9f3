"""Reads the rows that were added to segments since the last call, each row once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mesh_core.spi import MessageLog
from mesh_telemetry._events.proc_folder import ProcFolder, proc_folders
from mesh_telemetry._events.segments import (
    LINES_HEADER,
    MESSAGES,
    message_header,
    message_length,
    read_messages,
)
from mesh_telemetry._rows.line_tables import LINE_TABLES, line_batch
from mesh_telemetry._rows.message_tables import MESSAGE_TABLES, message_batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from mesh_telemetry._events.segments import Segment

    Row = dict[str, Any]

__all__ = ["NewRows", "SegmentTail"]

# Longer than any line, because the texts in lines are truncated.
_LINE_LEN_MAX = 1 << 20


class NewRows(NamedTuple):
    """The new rows of one process.

    `is_over` is true if the process will add no more.
    """

    folder: ProcFolder
    tables: Mapping[str, list[Row]]
    is_over: bool


class SegmentTail:
    """Reads segments from its last position, which survives a restart.

    Args:
        folder: The folder of the host.
        spill: The folder with evicted segments, if they are kept.
        tables: The tables to read.
        own_proc: The reading process, which appears in no table.
        position_file: The file with the position; None if the caller keeps `positions`.
        bytes_max: The number of bytes to read at a time.

    Attributes:
        positions: The read positions: by process and family, the number of the segment, and the
            length that was read of it.
        folders: The processes at the last call of `read`.
        lost_segments: The number of segments that were removed before they were read completely.
    """

    def __init__(
        self,
        folder: Path,
        spill: Path | None,
        tables: Sequence[str],
        own_proc: int,
        position_file: Path | None,
        bytes_max: int = 4 << 20,
    ) -> None:
        self._folder = folder
        self._spill = spill
        self._tables = tables
        self._own_procs = frozenset((own_proc,))
        self._position_file = position_file
        self._bytes_max = bytes_max
        families = {LINE_TABLES[table][0] for table in tables if table in LINE_TABLES}
        if any(table in MESSAGE_TABLES and table not in LINE_TABLES for table in tables):
            families.add(MESSAGES)
        self._families = sorted(families)
        self.positions: dict[str, list[int]] = {}
        if position_file is not None:
            with suppress(OSError, ValueError):
                self.positions = {
                    str(key): list(value) for key, value in json.loads(position_file.read_text())
                }
        self._exited: set[str] = set()
        self.lost_segments = 0
        self.folders: list[ProcFolder] = []

    def read(self) -> tuple[list[NewRows], bool]:
        """Return the new rows, and whether there are more than are read at a time."""
        self.folders = proc_folders(self._folder, self._spill)
        names = {folder.path.name for folder in self.folders}
        for key in [key for key in self.positions if key.partition("/")[0] not in names]:
            del self.positions[key]
        self._exited &= names
        found = []
        left = self._bytes_max
        for folder in self.folders:
            if folder.path.name in self._exited:
                continue
            tables: dict[str, list[Row]] = {table: [] for table in self._tables}
            for family in self._families:
                left = self._read(folder, family, tables, left)
                if left <= 0:
                    break
            # Liveness was determined before reading, so the last rows of an exited process have
            # been read.
            is_over = not folder.is_alive and left > 0
            if is_over:
                self._exited.add(folder.path.name)
            if is_over or any(tables.values()):
                found.append(NewRows(folder, tables, is_over))
            if left <= 0:
                return found, True
        return found, False

    def save(self) -> None:
        """Store the position, so that the returned rows are not read again."""
        assert self._position_file is not None, "the caller keeps the positions"
        incomplete = self._position_file.with_suffix(".new")
        with suppress(OSError):
            incomplete.write_text(json.dumps(list(self.positions.items())))
            incomplete.rename(self._position_file)

    def _read(
        self, folder: ProcFolder, family: str, tables: dict[str, list[Row]], left: int
    ) -> int:
        key = f"{folder.path.name}/{family}"
        for segment, _ in folder.segments(family):
            number, offset = self.positions.get(key, (0, 0))
            if segment.number < number:
                continue
            if segment.number > number:
                self.lost_segments += segment.number - number - 1
                offset = _header_len(family)
            if family == MESSAGES:
                piece = _message_piece(segment, offset, left)
                if piece.body and not folder.has_endpoint_names():
                    # These rows would have no endpoint, so they are read at the next call.
                    return left
            else:
                piece = _line_piece(segment, offset, left)
            self.positions[key] = [segment.number, offset + len(piece.body)]
            if piece.body:
                for table, rows in tables.items():
                    rows += self._rows(table, family, piece, folder)
            left -= len(piece.body)
            if left <= 0 or piece.is_cut:
                return min(left, 0)
        return left

    def _rows(self, table: str, family: str, piece: _Piece, folder: ProcFolder) -> list[Row]:
        """Decode part of a segment as if it were a whole segment."""
        is_message = family == MESSAGES
        if not is_message and (table not in LINE_TABLES or LINE_TABLES[table][0] != family):
            return []
        if is_message and (table not in MESSAGE_TABLES or table in LINE_TABLES):
            return []
        make = message_batch if is_message else line_batch
        file = os.memfd_create("mesh-telemetry", os.MFD_CLOEXEC)
        try:
            _write(file, piece.head + piece.body)
            own_procs = folder.own_procs | self._own_procs
            path = f"/proc/self/fd/{file}"
            batch: pa.RecordBatch | None = make(table, path, folder, own_procs)
        finally:
            os.close(file)
        return [] if batch is None else batch.to_pylist()


class _Piece(NamedTuple):
    head: bytes
    body: bytes
    is_cut: bool
    """Whether there is more than was read."""


def _line_piece(segment: Segment, offset: int, length_max: int) -> _Piece:
    """Read whole lines of a segment; nothing if it no longer exists."""
    try:
        with open(segment.path, "rb") as file:
            head = file.read(len(LINES_HEADER))
            file.seek(offset)
            # At least one line is read, regardless of its length.
            body = file.read(max(length_max, _LINE_LEN_MAX))
            is_cut = bool(file.read(1))
    except OSError:
        return _Piece(b"", b"", False)
    return _Piece(head, body[: body.rfind(b"\n") + 1], is_cut)


def _message_piece(segment: Segment, offset: int, length_max: int) -> _Piece:
    """Read whole records of a segment; nothing if it no longer exists."""
    length = segment.length()
    if length is None:
        return _Piece(b"", b"", False)
    record = MessageLog.RECORD.size
    end = min(length, offset + max(length_max, record) // record * record)
    found = read_messages(segment.path, (offset, end))
    if found is None:
        return _Piece(b"", b"", False)
    time_base_ns, body = found
    return _Piece(message_header(time_base_ns, len(body) // record), body, end < length)


def _header_len(family: str) -> int:
    return message_length(0) if family == MESSAGES else len(LINES_HEADER)


def _write(file: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(file, content[written:] if written else content)
