"""Rows of a segment that is still being written: only new rows are decoded, and none is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from mesh_core.spi import MessageLog
from mesh_telemetry._events.proc_folder import ProcFolder, ProcIdentity
from mesh_telemetry._events.segments import Segment, message_header
from mesh_telemetry._rows.message_tables import message_batch
from mesh_telemetry._rows.segment_rows import SegmentRows

IDENTITY = ProcIdentity(0, "here", 1, 0, 27, "procs", 0, 4711, 0, 99)
RECEIVED = MessageLog.KINDS.index("received")


def record(number: int) -> bytes:
    """Pack a message that was received at this time in microseconds."""
    return MessageLog.RECORD.pack(number * 1000, 20, 1, number + 1, 3, 4, RECEIVED, 0, 0, 0, 0)


class Written:
    """A segment of messages, and its rows."""

    def __init__(self, folder: Path, bytes_max: int = 1 << 20) -> None:
        self.path = folder / "messages.00000001.0.seg"
        self.path.write_bytes(message_header(0))
        self.made: list[int] = []
        self.rows = SegmentRows(bytes_max, frozenset())
        self._folder = ProcFolder(folder, None, IDENTITY)

    def append(self, content: bytes, *, counted: int = 1) -> None:
        """Append bytes, and increase the record count afterwards."""
        with open(self.path, "r+b") as file:
            header = file.read(MessageLog.HEADER.size)
            file.seek(0, os.SEEK_END)
            file.write(content)
            file.seek(0)
            file.write(message_header(0, MessageLog.HEADER.unpack(header)[2] + counted))

    def times(self, *, is_sealed: bool = False) -> list[int]:
        """Read the rows, and return their times."""

        def make(*words: object) -> pa.RecordBatch | None:
            batch = message_batch(*words)  # type: ignore[arg-type]
            self.made.append(0 if batch is None else batch.num_rows)
            return batch

        segment = Segment(str(self.path), "messages", 1, 0)
        pieces = self.rows.pieces("messages", self._folder, segment, make, is_sealed)
        assert pieces is not None
        for piece in pieces:
            times = piece.batch.column("timestamp_us").to_pylist()
            assert (piece.first_us, piece.last_us) == (min(times), max(times))
        return [time for piece in pieces for time in piece.batch.column("timestamp_us").to_pylist()]


def test_only_new_rows_are_decoded(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for at in range(40):
        written.append(record(at))
        assert written.times() == list(range(at + 1))
    assert written.times() == list(range(40))
    assert written.made == [1] * 40


def test_a_record_written_in_two_pieces_is_returned_once(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append(record(0) + record(1)[:20])
    assert written.times() == [0]
    written.append(record(1)[20:] + record(2), counted=2)
    assert written.times() == [0, 1, 2]


def test_a_sealed_segment_is_decoded_once_even_if_its_file_is_removed(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append(record(0))
    assert written.times(is_sealed=True) == [0]
    written.path.unlink()
    assert written.times(is_sealed=True) == [0]


def test_a_truncated_segment_is_decoded_again(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append(record(0) + record(1), counted=2)
    assert written.times() == [0, 1]
    written.path.write_bytes(message_header(0, 1) + record(5))
    assert written.times() == [5]


def test_no_rows_are_cached_without_space(tmp_path: Path) -> None:
    written = Written(tmp_path, bytes_max=0)
    written.append(record(0))
    assert written.times() == written.times() == [0]
    assert (written.made, written.rows.byte_count) == ([1, 1], 0)
