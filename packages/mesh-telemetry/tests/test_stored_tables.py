"""Rows on disk, as segments, as Parquet, or as both after a kill, are returned exactly once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from mesh_core.spi import MessageLog
from mesh_telemetry._disk.conversion import convert, pending_segments
from mesh_telemetry._disk.spill import enforce_size_limit
from mesh_telemetry._disk.stored_runs import HostMetadata, write_host_metadata
from mesh_telemetry._disk.stored_tables import StoredTables
from mesh_telemetry._events.segment_export import INCOMPLETE_SUFFIX, move_proc, move_segment
from mesh_telemetry._events.segments import SegmentWriter, message_header, segments_of
from mesh_telemetry._query.engine import run_fragment
from mesh_telemetry._query.fragment import Fragment
from mesh_telemetry._rows.schemas import TABLES
from mesh_telemetry._tables.host_tables import HostTables

PROC = "1.7.ab"
SENT = "select * from sent_messages order by timestamp_us"
IDENTITY = {
    "host": 0,
    "host_name": "here",
    "slot": 1,
    "incarnation": 0,
    "mesh": 30,
    "mesh_name": "team",
    "rank": 0,
    "pid": 1,
    "started_us": 5,
    "token": 9,
}
NOTE = HostMetadata(0, "here", "program", 1, 0, "")


class Host:
    """A host with one process that has written some lines and messages."""

    def __init__(self, folder: Path, count: int = 600) -> None:
        self.live, self.spill = folder / "live", folder / "spill" / "1-run" / "0"
        self.proc = self.live / PROC
        self.proc.mkdir(parents=True)
        (self.proc / "identity.json").write_text(json.dumps(IDENTITY))
        (self.proc / "own").write_text("port 99\n")
        lines = SegmentWriter(self.proc, "logs", 1 << 16, 60.0)
        for at in range(count):
            line = {"k": "log", "t": at, "actor": 30, "rank": 0, "text": f"line {at}", "peer": 1}
            lines.append(json.dumps(line).encode() + b"\n", 1, at)
        lines.close()
        for number, first in enumerate(range(0, count // 2, 60), 1):
            records = [
                MessageLog.RECORD.pack(
                    at * 1000, 99 if at % 10 == 0 else 50, 2, at + 1, 4, 5, 1, 0, 0, 0, 0
                )
                for at in range(first, min(first + 60, count // 2))
            ]
            path = self.proc / f"messages.{number:08d}.{first}.seg"
            path.write_bytes(message_header(0, len(records)) + b"".join(records))

    def tables(self) -> HostTables:
        return HostTables(self.live, spill=self.spill, cache_bytes=1 << 24)

    def move(self, count: int) -> None:
        """Move the oldest segments, as the process that wrote them does."""
        (self.spill / PROC).mkdir(parents=True, exist_ok=True)
        for name in ("identity.json", "own"):
            (self.spill / PROC / name).write_text((self.proc / name).read_text())
        for family in ("logs", "messages"):
            for segment in segments_of(self.proc, family)[:count]:
                move_segment(Path(segment.path), self.spill / PROC)

    def convert(self, stored: StoredTables | None = None) -> None:
        waiting = pending_segments(self.live, self.spill)
        convert(waiting, stored or StoredTables(self.spill), frozenset(), float("inf"))


def lines(
    tables: HostTables, since_us: int | None = None, until_us: int | None = None
) -> list[int]:
    batches = tables.batches("logs", since_us, until_us)
    return sorted(time for batch in batches for time in batch.column("timestamp_us").to_pylist())


def ask(
    tables: HostTables, sql: str, table: str = "logs", until_us: int | None = None
) -> list[dict[str, Any]]:
    fragment = Fragment(sql, (table,), until_us, 1 << 20, 1 << 28, 30.0)
    found: list[dict[str, Any]] = (
        pa.ipc.open_stream(run_fragment(fragment, tables)).read_all().to_pylist()
    )
    return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_live_segments_spilled_segments_and_files_form_one_table(host: Host) -> None:
    before = ask(host.tables(), "select * from logs order by timestamp_us")
    assert len(before) == 600
    sent = ask(host.tables(), SENT, "sent_messages")
    assert len(sent) == 270
    tables = host.tables()
    for _ in range(3):
        host.move(1)
        assert lines(tables) == list(range(600))
        host.convert()
        assert lines(tables) == lines(host.tables()) == list(range(600))
        assert ask(tables, "select * from logs order by timestamp_us") == before
        assert ask(tables, SENT, "sent_messages") == sent
        host.move(1)
        assert ask(tables, "select * from logs order by timestamp_us") == before
    assert len(StoredTables(host.spill).files("logs")) == 3
    assert not list(host.spill.rglob(f"*{INCOMPLETE_SUFFIX}"))


def test_files_outside_the_time_range_are_not_read(host: Host) -> None:
    for _ in range(4):
        host.move(1)
        host.convert()
    tables = host.tables()
    files = StoredTables(host.spill).files("logs")
    assert len(files) == 4
    assert len(tables.table_rows("logs", None, files[0].last_us).files) == 1
    assert len(tables.table_rows("logs", files[2].first_us, None).files) == 2
    middle = files[1].first_us + 3
    assert ask(tables, "select count(*) as n from logs", until_us=middle) == [{"n": middle + 1}]
    sql = f"select count(*) as n from logs where timestamp_us >= {middle}"
    assert ask(tables, sql) == [{"n": 600 - middle}]
    assert lines(tables, 5, middle) == list(range(5, middle + 1))


class Killed(Exception):
    """Simulates a kill between two steps."""


@pytest.mark.parametrize("steps", range(6))
def test_a_kill_between_two_steps_neither_loses_nor_duplicates_rows(
    host: Host, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = ask(host.tables(), SENT, "sent_messages")
    host.move(2)
    left = iter(range(steps))

    def step(work: object) -> object:
        def done(*args: object, **options: object) -> object:
            if next(left, None) is None:
                raise Killed
            return work(*args, **options)  # type: ignore[operator]

        return done

    monkeypatch.setattr(os, "unlink", step(os.unlink))
    monkeypatch.setattr(StoredTables, "write", step(StoredTables.write))
    with pytest.raises(Killed):
        host.convert()
    monkeypatch.undo()
    for _ in range(2):
        tables = host.tables()
        assert lines(tables) == list(range(600))
        found = ask(tables, SENT, "sent_messages")
        assert found == sent
        # The next process continues the conversion.
        host.convert()
    assert not pending_segments(host.live, host.spill)


def test_a_segment_in_both_folders_is_read_once(host: Host) -> None:
    (first, *_) = segments_of(host.proc, "logs")
    content = Path(first.path).read_bytes()
    host.move(1)
    Path(first.path).write_bytes(content)
    assert lines(host.tables()) == list(range(600))
    host.convert()
    assert lines(host.tables()) == list(range(600))
    move_proc(host.proc, host.spill / PROC)
    host.convert()
    assert lines(host.tables()) == list(range(600))


def test_other_programs_can_read_the_files(host: Host) -> None:
    move_proc(host.proc, host.spill / PROC)
    host.convert()
    folder = host.spill / "tables"
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "sent_messages"]
    query = f"select count(*), min(line) from read_parquet('{folder}/logs/*.parquet')"
    assert duckdb.execute(query).fetchall() == [(600, "line 0")]
    described = duckdb.execute(f"describe select * from read_parquet('{folder}/logs/*.parquet')")
    assert [row[0] for row in described.fetchall()] == TABLES["logs"].names
    metadata = duckdb.execute(
        f"select distinct compression from parquet_metadata('{folder}/logs/*')"
    )
    assert metadata.fetchall() == [("ZSTD",)]


def test_small_files_of_a_live_table_are_merged(host: Host) -> None:
    stored = StoredTables(host.spill)
    logs = host.tables().batches("logs", None, None)
    rows = pa.Table.from_batches(logs)
    for at in range(70):
        stored.write("logs", rows.slice(at, 1), ())
        stored.merge("logs", TABLES["logs"])
    assert len(stored.files("logs")) < 10
    assert (
        sum(
            batch.num_rows
            for batch in HostTables(host.live / "none", spill=host.spill).batches(
                "logs", None, None
            )
        )
        == 70
    )


def test_the_oldest_files_are_removed_at_the_size_limit(host: Host) -> None:
    write_host_metadata(host.spill, NOTE)
    for _ in range(4):
        host.move(1)
        host.convert()
    files = StoredTables(host.spill).files("logs")
    total = sum(path.stat().st_size for path in host.spill.rglob("*.parquet"))
    enforce_size_limit(host.spill.parents[1], "another", 0)
    assert StoredTables(host.spill).files("logs") == files
    enforce_size_limit(host.spill.parents[1], "here", total - 1)
    kept = StoredTables(host.spill).files("logs")
    everything = sum(path.stat().st_size for path in host.spill.rglob("*.parquet"))
    assert everything < total
    assert kept in (files, files[1:])
    enforce_size_limit(host.spill.parents[1], "here", 0)
    assert StoredTables(host.spill).files("logs") == []
    assert lines(host.tables())[-1] == 599


def test_no_segment_is_converted_after_the_deadline(host: Host) -> None:
    host.move(2)
    before = time.monotonic()
    left = convert(
        pending_segments(host.live, host.spill), StoredTables(host.spill), frozenset(), before
    )
    assert len(left) == 4
    assert StoredTables(host.spill).files("logs") == []
