"""Stored stack dumps: their rows, their limits, and their removal."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S
from recorded_program import config, host_folders

from mesh_core.testing import kill_proc, wait_until
from mesh_telemetry import StorageError, Telemetry, TelemetryError
from mesh_telemetry._stacks.folder import StackFolder, stack_files
from mesh_telemetry._stacks.pyspy_tables import DumpOrigin
from mesh_telemetry._stacks.tables import StackTables, store_dump

SECOND_US = 1_000_000


def open_files_in(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return sorted(path for path in found if path.startswith(f"{folder}/"))


def frame(name: str, line: int, *names: str) -> dict[str, Any]:
    """Return a frame in the format of py-spy."""
    return {
        "name": name,
        "filename": "/lib/app.py",
        "module": None,
        "short_filename": "app.py",
        "line": line,
        "locals": [
            {"name": each, "addr": 2**63 + 1, "arg": each == "x", "repr": None} for each in names
        ],
        "is_entry": False,
    }


def thread(number: int, *frames: dict[str, Any]) -> dict[str, Any]:
    """Return a thread in the format of py-spy."""
    return {
        "pid": 7,
        "thread_id": number,
        "thread_name": None,
        "os_thread_id": 70 + number,
        "active": True,
        "owns_gil": number == 1,
        "frames": list(frames),
        "process_info": None,
    }


THREADS = [thread(1, frame("inner", 5, "x", "y"), frame("outer", 9)), thread(2)]


def many(frames: int) -> str:
    """Return a dump with this number of frames, and a variable in each."""
    each = [frame(f"call_{at % 100}", at, "x") for at in range(frames // 100)]
    return json.dumps([thread(number, *each) for number in range(100)])


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with Telemetry(config(place)) as started:
        yield started


def rows(telemetry: Telemetry, sql: str, **options: Any) -> list[dict[str, Any]]:
    answer = telemetry.query(sql, timeout=LIMIT_S, require_full=True, **options)
    found: list[dict[str, Any]] = answer.table.to_pylist()
    return found


def origin(timestamp_us: int) -> DumpOrigin:
    return DumpOrigin("d", timestamp_us, "here", "0.1", "here/0.1")


DUMPS = {
    "threads": THREADS,
    "process": {"pid": 7, "stack_traces": THREADS},
    "result": {
        "Ok": {"pid": 7, "binary": "python3", "stack_traces": THREADS, "warnings": ["slow"]}
    },
}


def test_an_external_dump_is_queried_like_any_table(telemetry: Telemetry) -> None:
    for name, said in DUMPS.items():
        telemetry.store_pyspy_dump(name, "0.0", json.dumps(said))
        check_dump(telemetry, name)


def check_dump(telemetry: Telemetry, name: str) -> None:
    """Check the rows of one dump in all tables."""
    (dump,) = rows(
        telemetry,
        "select dump_id, pid, proc, proc_ref, capture_mode from pyspy_dumps "
        f"where dump_id = '{name}'",
    )
    assert dump == {
        "dump_id": name,
        "pid": 7,
        "proc": "0.0",
        "proc_ref": "0.0",
        "capture_mode": "python_only",
    }
    frames = f"select name, line from pyspy_frames where dump_id = '{name}' order by frame_depth"
    assert rows(telemetry, frames) == [{"name": "inner", "line": 5}, {"name": "outer", "line": 9}]
    found = rows(
        telemetry,
        "select l.name, l.addr, l.arg, f.name as function, s.owns_gil, d.pid "
        "from pyspy_local_variables l join pyspy_frames f "
        "on l.dump_id = f.dump_id and l.thread_id = f.thread_id and l.frame_depth = f.frame_depth "
        "join pyspy_stack_traces s on f.dump_id = s.dump_id and f.thread_id = s.thread_id "
        f"join pyspy_dumps d on f.dump_id = d.dump_id where d.dump_id = '{name}' order by l.name",
    )
    there = {"addr": 2**63 + 1, "function": "inner", "owns_gil": True, "pid": 7}
    assert found == [{"name": "x", "arg": True, **there}, {"name": "y", "arg": False, **there}]


def test_an_invalid_dump_is_refused(telemetry: Telemetry) -> None:
    for said in ("", "{}", "3", '{"Failed": "no"}', '[{"frames": []}]', "[[]]"):
        with pytest.raises(TelemetryError, match="py-spy dump --json"):
            telemetry.store_pyspy_dump("d", "0.0", said)
    assert rows(telemetry, "select * from pyspy_dumps") == []


def test_a_dump_is_not_visible_before_it_was_stored(telemetry: Telemetry) -> None:
    before = time.time()
    telemetry.store_pyspy_dump("d", "0.0", json.dumps(THREADS))
    count = "select count(*) as n from pyspy_frames"
    assert rows(telemetry, count) == [{"n": 2}]
    assert rows(telemetry, count, as_of=before) == [{"n": 0}]


def test_a_large_dump_is_grouped_and_joined(telemetry: Telemetry) -> None:
    telemetry.store_pyspy_dump("d", "0.0", many(100_000), timeout=LIMIT_S)
    groups = rows(telemetry, "select name, count(*) as n from pyspy_frames group by name")
    assert {row["n"] for row in groups} == {1000}
    joined = rows(
        telemetry,
        "select count(*) as n from pyspy_local_variables l join pyspy_frames f "
        "on l.dump_id = f.dump_id and l.thread_id = f.thread_id and l.frame_depth = f.frame_depth "
        "join pyspy_stack_traces s on f.dump_id = s.dump_id and f.thread_id = s.thread_id "
        "join pyspy_dumps d on f.dump_id = d.dump_id where l.arg",
    )
    assert joined == [{"n": 100_000}]


def test_a_dump_that_is_too_large_is_refused(place: Path) -> None:
    with Telemetry(config(place, stacks_bytes=100_000)) as telemetry:
        telemetry.store_pyspy_dump("small", "0.0", json.dumps(THREADS))
        with pytest.raises(StorageError, match="increase stacks_bytes"):
            telemetry.store_pyspy_dump("large", "0.0", many(10_000))
        assert rows(telemetry, "select dump_id from pyspy_dumps") == [{"dump_id": "small"}]


def test_the_oldest_dumps_are_evicted_at_the_size_limit(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path, bytes_max=200_000, retention_s=3600)
    now_us = time.time_ns() // 1000
    for number in range(50):
        store_dump(folder, json.dumps(THREADS), origin(now_us + number))
        files = stack_files(tmp_path)
        assert sum(os.path.getsize(file.path) for file in files) <= 200_000
    assert len(files) > 1
    assert [file.timestamp_us for file in files] == [
        now_us + number for number in range(50 - len(files), 50)
    ]
    folder.close()


def test_expired_dumps_are_removed_without_a_query(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path, bytes_max=1 << 20, retention_s=1)
    store_dump(folder, json.dumps(THREADS), origin(time.time_ns() // 1000))
    wait_until(lambda: not stack_files(tmp_path), LIMIT_S)
    # Retention also applies to the next dump.
    store_dump(folder, json.dumps(THREADS), origin(time.time_ns() // 1000))
    wait_until(lambda: not stack_files(tmp_path), LIMIT_S)
    folder.close()


def test_files_left_by_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "5-ab.incomplete").write_bytes(b"half of it")
    (tmp_path / "5-ab.arrow").write_bytes(b"too old")
    StackFolder(tmp_path, bytes_max=1, retention_s=1).close()
    wait_until(lambda: list(tmp_path.iterdir()) == [], LIMIT_S)


def test_columns_are_decoded_once_and_hold_no_file_descriptors(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path, bytes_max=1 << 26, retention_s=3600)
    now_us = time.time_ns() // 1000
    for number in range(20):
        store_dump(folder, json.dumps(THREADS), origin(now_us + number))
    tables = StackTables(tmp_path)
    before = open_files_in(tmp_path)
    first = tables.batches("pyspy_frames", None, None)
    assert len(first) == 20
    assert open_files_in(tmp_path) == before
    again = tables.batches("pyspy_frames", None, None)
    assert all(one is other for one, other in zip(first, again, strict=True))
    for file in stack_files(tmp_path):
        os.unlink(file.path)
    assert tables.batches("pyspy_frames", None, None) == []
    assert first[0].column("name").to_pylist() == ["inner", "outer"]
    folder.close()


def test_dumps_survive_a_restart_of_their_query_server(telemetry: Telemetry, place: Path) -> None:
    telemetry.store_pyspy_dump("d", "0.0", json.dumps(THREADS))
    (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
    assert handle.rows is not None
    kill_proc(handle.rows)

    def is_back() -> bool:
        answer = telemetry.query("select 1 from pyspy_dumps", timeout=LIMIT_S)
        return answer.coverage.is_full and answer.table.num_rows == 1

    def tried() -> bool:
        try:
            return is_back()
        except TelemetryError:
            return False

    wait_until(tried, LIMIT_S)
    assert len(host_folders(place)) == 1
