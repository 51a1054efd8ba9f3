"""The file in which a process writes its collectives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mesh_telemetry._collectives.collectives_file import (
    CollectivesFile,
    ProcessGroup,
    read_collectives,
    read_groups,
    read_progress,
)
from mesh_telemetry._hangs.stall_monitor import StallMonitor

CALLER = ("/job/train.py", "step", 31)
GROUP = ProcessGroup(0, "0", "node:1", (0, 1), 1, "gloo")


def enter(file: CollectivesFile, sequence: int, operation: str = "all_reduce") -> int:
    """Write the beginning of an operation."""
    return file.enter(0, operation, -1, sequence, 16, "float32[4]", CALLER, is_async=False)


def test_operations_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = CollectivesFile(tmp_path)
    file.add_group(GROUP)
    first, second = enter(file, 0), enter(file, 1, "broadcast")
    file.leave(first)
    assert read_groups(str(tmp_path)) == [GROUP]
    one, other = read_collectives(str(tmp_path))
    assert (one.operation, one.sequence, one.file, one.function, one.line) == (
        "all_reduce", 0, *CALLER
    )  # fmt: skip
    assert one.left_ns >= one.entered_ns > 0
    assert (other.serial, other.operation, other.left_ns) == (second, "broadcast", 0)
    progress = read_progress(str(tmp_path))
    assert progress is not None
    assert (progress.begun_count, progress.running_since_ns) == (2, other.entered_ns)
    file.leave(second, is_failed=True)
    file.leave(second)
    assert read_collectives(str(tmp_path))[1].is_failed
    after = read_progress(str(tmp_path))
    assert after is not None
    assert after.running_since_ns == 0


def test_only_the_latest_operations_are_kept(tmp_path: Path) -> None:
    file = CollectivesFile(tmp_path)
    never_ends = enter(file, 0)
    for sequence in range(1, 1000):
        file.leave(enter(file, sequence))
    file.leave(never_ends)
    found = read_collectives(str(tmp_path))
    assert [one.sequence for one in found] == list(range(744, 1000))
    assert all(one.left_ns for one in found)


def test_long_names_are_truncated(tmp_path: Path) -> None:
    file = CollectivesFile(tmp_path)
    path = "/deep" * 100 + "/train.py"
    file.enter(0, "o" * 99, 0, 0, 1, "s" * 99, (path, "f" * 99, 1), is_async=True)
    (one,) = read_collectives(str(tmp_path))
    assert one.file.endswith("/train.py")
    assert (one.operation, one.is_async) == ("o" * 24, True)


def test_the_file_of_a_killed_process_is_read(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        enter(CollectivesFile(tmp_path), 5)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (one,) = read_collectives(str(tmp_path))
    assert (one.sequence, one.left_ns) == (5, 0)


def test_a_process_without_collectives_has_no_file(tmp_path: Path) -> None:
    assert read_collectives(str(tmp_path)) == []
    assert read_groups(str(tmp_path)) == []
    assert read_progress(str(tmp_path)) is None


def test_the_monitor_reports_a_new_process_once_and_slow_processes_repeatedly(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "1.22.abc"
    folder.mkdir()
    monitor = StallMonitor(tmp_path, 0.05, lambda: None)
    monitor.close()
    file = CollectivesFile(folder)
    assert monitor.is_stalled()
    assert not monitor.is_stalled()
    serial = enter(file, 0)
    while not monitor.is_stalled():
        os.sched_yield()
    # The operation of a process that has exited never ends.
    (folder / "lock").touch()
    assert not monitor.is_stalled()
    (folder / "lock").unlink()
    assert monitor.is_stalled()
    file.leave(serial)
    assert not monitor.is_stalled()
