"""Message segments: written by the core, limited in size, always with the latest messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mesh_core import Actor, endpoint, this_proc
from mesh_core.spi import MessageLog
from mesh_telemetry._events.message_segments import MessageSegments
from mesh_telemetry._events.segments import message_counts, message_length, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BYTES_MAX = 64 << 10


class Worker(Actor):
    @endpoint
    def add(self, n: int) -> int:
        return n + 1


@pytest.fixture
def worker() -> Iterator[Worker]:
    mesh = this_proc().spawn("worker", Worker)
    mesh.add.call_one(0).get()
    yield mesh
    mesh.stop().get()


def segments(folder: Path, retention_s: float = 60.0, spill: Path | None = None) -> MessageSegments:
    return MessageSegments(folder, MessageLog(10_000), BYTES_MAX, retention_s, spill)


def counts(folder: Path) -> list[int]:
    """Return the number of messages in each segment, oldest first."""
    found = [message_counts(one.path) for one in segments_of(folder, "messages")]
    return [one[0] for one in found if one is not None]


def calls(worker: Worker, kept: MessageSegments, count: int) -> int:
    """Make calls with periodic maintenance; return the number of bytes that it reported."""
    came = 0
    for at in range(count):
        worker.add.call_one(at).get()
        if at % 10 == 0:
            came += kept.prepare()
    return came + kept.prepare()


def test_messages_stay_within_their_size_limit(tmp_path: Path, worker: Worker) -> None:
    kept = segments(tmp_path)
    came = 0
    try:
        for _ in range(20):
            came += calls(worker, kept, 50)
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= BYTES_MAX
        assert kept.sealed.evicted_count > 0
        assert kept.dropped == 0
        found = counts(tmp_path)
        # All space is used, except for segments that are handed over in advance.
        assert sum(found) * MessageLog.RECORD.size > BYTES_MAX // 2
        begun = len(found) + kept.sealed.evicted_bytes // message_length(found[0])
        records = sum(found) + kept.sealed.evicted_count
        assert came == records * MessageLog.RECORD.size + begun * message_length(0)
        assert records >= 5 * 20 * 50
    finally:
        kept.close()


def test_unused_space_is_released_on_close(tmp_path: Path, worker: Worker) -> None:
    kept = segments(tmp_path)
    calls(worker, kept, 3)
    kept.close()
    (path,) = tmp_path.iterdir()
    (count,) = counts(tmp_path)
    assert count >= 15
    assert path.stat().st_size == message_length(count)


def test_waiting_messages_are_written_at_the_next_poll(tmp_path: Path, worker: Worker) -> None:
    kept = segments(tmp_path)
    try:
        for at in range(100):
            worker.add.call_one(at).get()
        kept.prepare()
        last = segments_of(tmp_path, "messages")[-1]
        found = message_counts(last.path)
        assert found is not None
        assert found[2] == 0
        assert sum(counts(tmp_path)) >= 500
        assert kept.dropped == 0
    finally:
        kept.close()


def test_expired_segments_are_moved_to_the_spill_folder(tmp_path: Path, worker: Worker) -> None:
    here, spill = tmp_path / "here", tmp_path / "spill"
    here.mkdir()
    kept = segments(here, retention_s=0.0, spill=spill)
    try:
        calls(worker, kept, 3)
        kept.expire()
        assert counts(here) == []
        worker.add.call_one(1).get()
        (there,) = counts(spill)
        assert there >= 15
        (last,) = segments_of(spill, "messages")
        assert last.last_us() is not None
        assert last.first_us <= (last.last_us() or 0)
        (left,) = counts(here)
        assert left >= 5
    finally:
        kept.close()


def test_without_a_folder_messages_are_dropped_and_counted(tmp_path: Path, worker: Worker) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    kept = MessageSegments(folder, MessageLog(20), BYTES_MAX, 60.0)
    try:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        for at in range(100):
            worker.add.call_one(at).get()
        kept.prepare()
        kept.prepare()
        assert kept.has_no_space
        assert kept.dropped > 0
    finally:
        kept.close()
