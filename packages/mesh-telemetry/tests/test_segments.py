"""Segment files: torn ends, size limit, age, and abandoned folders."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from mesh_core.spi import MessageLog
from mesh_core.testing import wait_until
from mesh_telemetry._events.folders import Lock, is_locked, open_host_folder, remove_if_free, sweep
from mesh_telemetry._events.segments import (
    LINES_HEADER,
    SegmentWriter,
    message_header,
    read_lines,
    read_messages,
    segments_of,
)


def writer(folder: Path, bytes_max: int = 8000, retention_s: float = 60.0) -> SegmentWriter:
    return SegmentWriter(folder, "logs", bytes_max, retention_s)


def lines_in(folder: Path) -> list[bytes]:
    return [line for one in segments_of(folder, "logs") for line in read_lines(one.path)]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    written = writer(tmp_path)
    written.append(b"one\ntwo\n", 2, 1)
    (segment,) = segments_of(tmp_path, "logs")
    with open(segment.path, "ab") as file:
        file.write(b"thr")
    assert lines_in(tmp_path) == [b"one", b"two"]
    assert (segment.number, segment.first_us) == (1, 1)


def test_records_past_the_count_are_left_out(tmp_path: Path) -> None:
    record = MessageLog.RECORD.pack(5, 20, 1, 2, 3, 4, 1, 0, 0, 0, 0)
    path = tmp_path / "messages.00000001.0.seg"
    path.write_bytes(message_header(-7, 3) + 5 * record + record[:9])
    assert read_messages(str(path)) == (-7, 3 * record)
    assert read_messages(str(path), (128, 192)) == (-7, record)
    # A manually truncated file.
    path.write_bytes(message_header(-7, 3) + 2 * record + record[:9])
    assert read_messages(str(path)) == (-7, 2 * record)


@pytest.mark.parametrize("content", [b"", b"MESH", b"another file\n", LINES_HEADER[:-1]])
def test_an_invalid_segment_file_has_no_rows(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "logs.00000001.0.seg"
    path.write_bytes(content)
    assert read_lines(str(path)) == []
    assert read_messages(str(path)) is None
    assert read_messages(str(tmp_path / "none")) is None


def test_the_oldest_segment_is_evicted_at_the_size_limit(tmp_path: Path) -> None:
    written = writer(tmp_path, bytes_max=8000)
    for number in range(200):
        written.append(b"%099d\n" % number, 1, number)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8000
    found = [int(line) for line in lines_in(tmp_path)]
    assert found == list(range(found[0], 200))
    assert len(found) > 60
    assert written.sealed.evicted_count == 200 - len(found)


def test_a_writer_continues_after_its_open_segment_is_evicted(tmp_path: Path) -> None:
    written = writer(tmp_path)
    written.append(b"one\n", 1, 1)
    (segment,) = segments_of(tmp_path, "logs")
    while written.evict():
        pass
    assert segments_of(tmp_path, "logs") == []
    assert read_lines(segment.path) == []
    written.append(b"two\n", 1, 2)
    assert lines_in(tmp_path) == [b"two"]


def test_expired_segments_are_removed_without_new_rows(tmp_path: Path) -> None:
    written = writer(tmp_path, retention_s=0.05)
    written.append(b"one\n", 1, 1)

    def is_gone() -> bool:
        written.expire()
        return not segments_of(tmp_path, "logs")

    wait_until(is_gone)
    assert written.sealed.evicted_count == 0


def test_spilled_segments_are_moved_to_the_spill_folder(tmp_path: Path) -> None:
    spill = tmp_path / "spilled"
    kept = tmp_path / "kept"
    kept.mkdir()
    written = SegmentWriter(kept, "logs", 8000, 60.0, spill)
    for number in range(200):
        written.append(b"%099d\n" % number, 1, number)
    assert [int(line) for line in [*lines_in(spill), *lines_in(kept)]] == list(range(200))


def test_a_folder_is_removed_by_its_last_user(tmp_path: Path) -> None:
    folder, one = open_host_folder(str(tmp_path), "run", 0)
    same, two = open_host_folder(str(tmp_path), "run", 0)
    assert folder == same
    assert is_locked(folder)
    sweep(str(tmp_path))
    one.close()
    assert not remove_if_free(folder)
    two.close()
    assert remove_if_free(folder)
    assert list(tmp_path.iterdir()) == []


def test_folders_of_dead_processes_are_swept(tmp_path: Path) -> None:
    folder, lock = open_host_folder(str(tmp_path), "run", 3)
    (folder / "1.2.aa").mkdir()
    (folder / "1.2.aa" / "identity.json").write_text("{}")
    other, held = open_host_folder(str(tmp_path), "other", 3)
    lock.close()
    sweep(str(tmp_path))
    assert not folder.exists()
    assert other.exists()
    held.close()


def test_a_new_folder_is_in_use_before_and_while_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_file, seen = fcntl.flock, [is_locked(tmp_path)]

    def flock(fd: int, how: int) -> None:
        with monkeypatch.context() as undone:
            undone.setattr(fcntl, "flock", lock_file)
            seen.append(is_locked(tmp_path))
            lock_file(fd, how)
            seen.append(is_locked(tmp_path))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", flock)
        lock = Lock.of_new(tmp_path)
    assert [*seen, is_locked(tmp_path)] == [True] * 4
    lock.close()
    assert not is_locked(tmp_path)


def test_a_lock_is_released_when_its_process_exits(tmp_path: Path) -> None:
    code = "import sys\nfrom pathlib import Path\nfrom mesh_telemetry._events.folders import Lock\n"
    code += f"lock = Lock(Path({str(tmp_path)!r}), is_shared=False)\nprint(1, flush=True)\n"
    code += "sys.stdin.read()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        assert is_locked(tmp_path)
        holder.kill()
    assert not is_locked(tmp_path)
