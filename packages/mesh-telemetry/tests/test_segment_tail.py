"""New rows in segments are returned once, even if files are moved or the reader restarts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mesh_core.spi import MessageLog
from mesh_telemetry._events.endpoint_names import write_endpoints
from mesh_telemetry._events.folders import Lock
from mesh_telemetry._events.segments import SegmentWriter, message_header
from mesh_telemetry._events.write_progress import WriteProgressFile
from mesh_telemetry._rows.segment_tail import SegmentTail

IDENTITY = {
    "host": 0,
    "host_name": "here",
    "slot": 3,
    "incarnation": 0,
    "mesh": 17,
    "mesh_name": "team",
    "rank": 1,
    "pid": 1234,
    "started_us": 1,
    "token": 99,
}


class Program:
    """A process that writes lines; the oldest ones are evicted at the size limit."""

    def __init__(self, host: Path, bytes_max: int = 1 << 20) -> None:
        self.folder = host / "3.1234.aa"
        self.folder.mkdir()
        self.lock = Lock(self.folder, is_shared=False)
        (self.folder / "identity.json").write_text(json.dumps(IDENTITY))
        self.writer = SegmentWriter(self.folder, "logs", bytes_max, 3600.0)
        self.count = 0

    def say(self, count: int, length: int = 1) -> None:
        for _ in range(count):
            at_us = time.time_ns() // 1000
            line = {"t": at_us, "k": "log_line", "peer": 3, "actor": 17, "rank": 1}
            line |= {"text": str(self.count).rjust(length), "mesh": "team", "stream": "stdout"}
            self.writer.append(json.dumps(line).encode() + b"\n", 1, at_us)
            self.count += 1

    def die(self) -> None:
        self.lock.close()


def tail(host: Path, **options: Any) -> SegmentTail:
    return SegmentTail(host, None, ("logs", "failures"), 0, host / "otlp-logs.json", **options)


def taken(reader: SegmentTail) -> tuple[list[int], list[bool], bool]:
    fresh, has_more = reader.read()
    numbers = [int(row["line"]) for one in fresh for row in one.tables["logs"]]
    return numbers, [one.is_over for one in fresh], has_more


def test_rows_are_returned_once_across_segments_and_readers(tmp_path: Path) -> None:
    program = Program(tmp_path)
    reader = tail(tmp_path)
    program.say(3)
    assert taken(reader) == ([0, 1, 2], [False], False)
    assert taken(reader) == ([], [], False)
    program.say(1)
    program.writer.seal()
    program.say(1)
    assert taken(reader) == ([3, 4], [False], False)
    reader.save()
    program.say(2)
    # A restarted reader continues at the recorded position of the previous one.
    other = tail(tmp_path)
    assert taken(other) == ([5, 6], [False], False)
    program.say(1)
    program.die()
    assert taken(other) == ([7], [True], False)
    assert taken(other) == ([], [], False)
    assert other.lost_segments == 0


def test_an_incomplete_line_is_returned_once_it_is_complete(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.say(1)
    (path,) = program.folder.glob("logs.*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    reader = tail(tmp_path)
    assert taken(reader)[0] == []
    path.write_bytes(whole)
    assert taken(reader)[0] == [0]


def test_messages_are_returned_once_their_endpoint_names_are_written(tmp_path: Path) -> None:
    program = Program(tmp_path)
    progress = WriteProgressFile(program.folder)
    received = MessageLog.KINDS.index("received")
    mark, *_ = MessageLog.HEADER.unpack(message_header(0))
    record = MessageLog.RECORD.pack(1000, 20, 1, 1, 3, 4, received, 0, 1, 0, 0)
    path = program.folder / "messages.00000001.0.seg"
    path.write_bytes(MessageLog.HEADER.pack(mark, 0, 1, 1, 0) + record)
    reader = SegmentTail(tmp_path, None, ("messages",), 0, None)
    assert reader.read() == ([], False)
    write_endpoints(program.folder, ["", "step"])
    progress.publish(1, 1)
    (fresh,), _ = reader.read()
    assert [row["endpoint"] for row in fresh.tables["messages"]] == ["step"]


def test_segments_evicted_before_they_are_read_are_counted(tmp_path: Path) -> None:
    program = Program(tmp_path, bytes_max=8192)
    reader = tail(tmp_path)
    program.say(2)
    assert taken(reader)[0] == [0, 1]
    program.say(200)
    numbers, _, _ = taken(reader)
    assert numbers == list(range(numbers[0], 202))
    assert numbers[0] > 2
    assert reader.lost_segments > 0


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_large_backlog_is_read_in_parts(tmp_path: Path, is_alive: bool) -> None:
    program = Program(tmp_path, bytes_max=16 << 20)
    program.say(300, length=10_000)
    if not is_alive:
        program.die()
    reader = tail(tmp_path, bytes_max=1 << 20)
    found: list[int] = []
    ends: list[bool] = []
    parts = 0
    has_more = True
    while has_more:
        numbers, is_over, has_more = taken(reader)
        found += numbers
        ends += is_over
        parts += 1
        assert parts < 10
    assert found == list(range(300))
    assert parts >= 3
    assert ends[-1] is not is_alive
    assert not any(ends[:-1])
