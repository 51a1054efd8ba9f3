"""Every table of a small program that produces some events of every kind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S, Blocker, Waiter, Worker
from recorded_program import (
    config,
    host_folders,
    host_tables,
    rows,
    wait_for_rows,
)

from mesh_core import Channel, ProcMesh, span, this_host
from mesh_core.testing import wait_until
from mesh_telemetry import QueryError, Telemetry
from mesh_telemetry._rows.schemas import LIVE_TABLES, TABLE_DOCS, TABLES
from mesh_telemetry._tables.host_tables import HostTables


class Recorded:
    """A program that is recorded, and its rows."""

    def __init__(self, place: Path) -> None:
        self.telemetry = Telemetry(config(place)).start()
        self.procs: ProcMesh = this_host().spawn_procs({"gpus": 2}, name="team")
        self.workers: Any = self.procs.spawn("workers", Worker)
        self.workers.initialized.get(LIMIT_S)
        self.tables: HostTables = host_tables(place, cache_bytes=1 << 26)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows(self.tables, table)

    def wait(self, table: str, count: int = 1, /, **wanted: Any) -> list[dict[str, Any]]:
        return wait_for_rows(self.tables, table, count, **wanted)

    def close(self) -> None:
        self.telemetry.close()
        self.procs.stop().get(LIMIT_S)


@pytest.fixture
def program(place: Path) -> Iterator[Recorded]:
    recorded = Recorded(place)
    yield recorded
    recorded.close()
    assert host_folders(place) == []


def test_actors_and_meshes(program: Recorded) -> None:
    actors = program.wait("actors", 2, display_name="workers")
    assert [row["rank"] for row in sorted(actors, key=lambda row: row["rank"])] == [0, 1]
    assert {row["class"] for row in actors} == {"Worker"}
    assert len({row["id"] for row in actors}) == 2
    (mesh,) = program.wait("meshes", given_name="workers")
    (procs,) = program.wait("meshes", given_name="team")
    assert (mesh["class"], mesh["parent_mesh_id"]) == ("Worker", procs["id"])
    assert {row["mesh_id"] for row in actors} == {mesh["id"]}
    assert (procs["class"], procs["shape_json"], procs["size"]) == ("Proc", '{"gpus": 2}', 2)
    statuses = program.wait("actor_status_events", 2, new_status="running")
    assert {row["actor_id"] for row in statuses} == {row["id"] for row in actors}


def test_messages_are_the_same_on_both_sides(program: Recorded) -> None:
    program.workers.add.call(1).get(LIMIT_S)
    began_us = time.time_ns() // 1000
    for number in range(10):
        program.workers.add.call(number).get(LIMIT_S)
    (mesh,) = program.wait("meshes", given_name="workers")
    sent = [
        row
        for row in program.rows("sent_messages")
        if row["actor_mesh_id"] == mesh["id"] and row["timestamp_us"] >= began_us
    ]
    ids = {row["id"] for row in sent}
    assert len(ids) == len(sent) == 20
    received = [row for row in program.rows("messages") if row["id"] in ids]
    assert {row["id"] for row in received} == ids
    assert {row["from_proc"] for row in received} == {"0.0"}
    assert {row["proc"] for row in received} == {row["to_proc"] for row in sent}
    actors = {row["id"] for row in program.rows("actors")}
    assert {row["to_actor_id"] for row in received} <= actors
    events = [row for row in program.rows("message_status_events") if row["message_id"] in ids]
    for status in ("queued", "active", "complete", "returned"):
        assert {row["message_id"] for row in events if row["status"] == status} == ids
    assert len({row["id"] for row in events}) == len(events)


def test_the_first_messages_to_a_process_are_recorded(program: Recorded) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="new")
    hasty: Any = procs.spawn("hasty", Worker)
    calls = [hasty.add.call(number) for number in range(20)]
    for call in calls:
        call.get(LIMIT_S)
    (mesh,) = program.wait("meshes", given_name="hasty")
    sent = {
        row["id"]
        for row in program.wait("sent_messages", 40, actor_mesh_id=mesh["id"])
        if row["endpoint"] == "add"
    }
    received = program.wait("messages", 40, endpoint="add", mesh_id=mesh["id"])
    assert {row["id"] for row in received} == sent
    procs.stop().get(LIMIT_S)


def test_the_sender_and_the_endpoint_of_a_message_are_recorded(program: Recorded) -> None:
    first, second = (program.workers.slice(gpus=gpu) for gpu in range(2))
    first.ask.call_one(second, 1).get(LIMIT_S)
    second.ask.call_one(first, 1).get(LIMIT_S)
    actors = {row["rank"]: row["id"] for row in program.wait("actors", 2, display_name="workers")}
    blocker_row = program.wait("messages", 2, endpoint="add")
    assert {row["from_actor_id"]: row["to_actor_id"] for row in blocker_row} == {
        actors[0]: actors[1],
        actors[1]: actors[0],
    }
    sent = {row["id"]: row for row in program.wait("sent_messages", 2, endpoint="add")}
    for row in blocker_row:
        assert sent[row["id"]]["sender_actor_id"] == row["from_actor_id"]
    by_program = program.wait("messages", 2, endpoint="ask")
    assert {row["from_actor_id"] for row in by_program} == {None}
    events = [row for row in program.rows("message_status_events") if row["message_id"] in sent]
    assert {row["endpoint"] for row in events} == {"add"}
    assert {row["status"] for row in events} == {"queued", "active", "complete", "returned"}


def test_a_value_on_a_channel_has_a_sender_and_no_endpoint(program: Recorded) -> None:
    port, receiver = Channel[int].open()
    program.workers.slice(gpus=1).tell.call_one(port, 7).get(LIMIT_S)
    assert receiver.recv().get(LIMIT_S) == 7
    (actor,) = program.wait("actors", 1, display_name="workers", rank=1)
    (row,) = program.wait("messages", 1, from_actor_id=actor["id"])
    assert (row["endpoint"], row["proc"]) == (None, "0.0")


def test_spans_form_traces_across_processes(program: Recorded) -> None:
    first, second = (program.workers.slice(gpus=gpu) for gpu in range(2))
    with span("program"):
        first.ask.call_one(second, 1).get(LIMIT_S)
        second.work.call_one(7).get(LIMIT_S)
    (top,) = program.wait("spans", 1, name="program")
    (ask,) = program.wait("spans", 1, name="ask")
    (outer,) = program.wait("spans", 1, name="outer")
    (inner,) = program.wait("spans", 1, name="inner")
    assert {row["trace_id"] for row in (ask, outer, inner)} == {top["trace_id"]}
    assert (top["parent_span_id"], top["message_id"]) == (None, None)
    assert (ask["parent_span_id"], ask["parent_id"]) == (top["span_id"], None)
    assert outer["parent_span_id"] == top["span_id"]
    assert (inner["parent_span_id"], inner["parent_id"]) == (outer["span_id"], outer["id"])
    assert len({row["span_id"] for row in (top, ask, outer, inner)}) == 4
    (served,) = program.wait("messages", 1, endpoint="ask")
    (blocker_row,) = program.wait("messages", 1, endpoint="add")
    (sent,) = program.wait("sent_messages", 1, endpoint="add")
    assert (ask["message_id"], served["parent_span_id"]) == (served["id"], top["span_id"])
    assert blocker_row["parent_span_id"] == sent["parent_span_id"] == ask["span_id"]


def test_spans_and_metrics(program: Recorded) -> None:
    program.workers.work.call(7).get(LIMIT_S)
    outer = program.wait("spans", 2, name="outer")
    inner = program.wait("spans", 2, name="inner")
    assert {row["parent_id"] for row in inner} == {row["id"] for row in outer}
    assert {row["fields_json"] for row in outer} == {'{"number":7}'}
    ends = [row for row in program.rows("span_events") if row["event_type"] == "close"]
    assert {row["id"] for row in ends} == {row["id"] for row in [*inner, *outer]}
    actors = {row["id"] for row in program.rows("actors")}
    sums = program.wait("metric_sums", 2, name="steps")
    assert {(row["sum_i64"], row["sum_f64"], row["is_monotonic"]) for row in sums} == {
        (2, None, True)
    }
    assert {row["attributes_json"] for row in sums} == {'{"phase":"warm"}'}
    assert {row["actor_id"] for row in sums} <= actors
    levels = program.wait("metric_sums", 2, name="level")
    assert {(row["sum_f64"], row["is_monotonic"]) for row in levels} == {(-0.5, False)}
    assert {row["value_f64"] for row in program.wait("metric_gauges", 2)} == {0.25}
    (size, _) = program.wait("metric_histograms", 2, name="size")
    assert (size["count"], size["sum_f64"], size["min_f64"], size["max_f64"]) == (1, 30, 30, 30)
    assert size["bucket_counts_json"].startswith("[0, 0, 0, 0, 1, 0,")


def test_lines_printed_by_processes(program: Recorded) -> None:
    program.workers.shout.call("hello").get(LIMIT_S)
    lines = program.wait("logs", 2, line="hello")
    assert {(row["mesh"], row["stream"]) for row in lines} == {("team", "stdout")}
    assert {row["rank"] for row in lines} == {0, 1}
    procs = {row["rank"]: row["proc"] for row in program.rows("procs") if row["mesh"] == "team"}
    assert {row["rank"]: row["proc"] for row in lines} == procs


def test_failures_of_actors(program: Recorded) -> None:
    program.workers.fail.call().exception(LIMIT_S)
    mortal: Any = program.procs.spawn("mortal", Worker, restart="permanent")
    mortal.fail.broadcast()
    found = program.wait("failures", 2, mesh="mortal")
    assert {(row["kind"], row["rank"]) for row in found} == {("actor", 0), ("actor", 1)}
    assert {row["reason"] for row in found} == {"ValueError: it is broken"}
    failed = program.wait("actor_status_events", 2, new_status="failed")
    assert {row["reason"] for row in failed} == {"ValueError: it is broken"}
    assert program.wait("events", 2, name="restarted")
    mortal.stop().get(LIMIT_S)


def test_waits_between_actors(program: Recorded, tmp_path: Path) -> None:
    blocker = program.procs.slice(gpus=1).spawn("blocker", Blocker)
    blocker.set_path.call_one(str(tmp_path / "open")).get(LIMIT_S)
    waiter = program.procs.slice(gpus=0).spawn("waiter", Waiter)
    waiting = waiter.wait.call_one(blocker)
    (wait,) = program.wait("waits", 1, actor="waiter")
    (blocker_row,) = program.wait("actors", 1, display_name="blocker")
    assert (wait["running"], wait["endpoint"]) == ("wait", "wait_for_file")
    assert wait["for_actor_id"] == blocker_row["id"]
    assert wait["for_proc"] == blocker_row["proc"]
    assert 0 <= wait["waited_ms"] < 1000 * LIMIT_S
    (stack,) = program.wait("stacks", 1, function="Blocker.wait_for_file")
    assert stack["proc"] == blocker_row["proc"]
    (tmp_path / "open").touch()
    assert waiting.get(LIMIT_S) == 1
    wait_until(lambda: not [row for row in program.rows("waits") if row["actor"]], LIMIT_S)


def test_the_current_state_of_processes_and_hosts(program: Recorded) -> None:
    found = program.wait("procs", 3)
    assert {row["mesh"] for row in found} == {"root", "team"}
    (root,) = (row for row in found if row["mesh"] == "root")
    assert root["pid"] == os.getpid()
    assert root["cpu_s"] > 0
    assert root["rss_bytes"] > 1 << 20
    assert root["threads"] > 1
    assert {row["incarnation"] for row in found} == {0}
    (host,) = program.rows("hosts")
    assert host["cpus"] == len(os.sched_getaffinity(0))
    assert 0 < host["memory_free_bytes"] <= host["memory_total_bytes"]
    assert 0 < host["boot_us"] < time.time_ns() // 1000


def test_tables_as_of_an_earlier_time(program: Recorded) -> None:
    program.workers.work.call(1).get(LIMIT_S)
    program.wait("spans", 4)
    then_us = time.time_ns() // 1000
    program.workers.work.call(2).get(LIMIT_S)
    program.wait("spans", 8)
    assert len(rows(program.tables, "spans", then_us)) == 4
    assert sum(b.num_rows for b in program.tables.batches("spans", then_us + 1, None)) == 4
    for table in LIVE_TABLES:
        with pytest.raises(QueryError, match="as_of"):
            program.tables.batches(table, None, then_us)


def test_the_tables_contain_no_rows_about_telemetry_itself(program: Recorded) -> None:
    program.workers.work.call(1).get(LIMIT_S)
    program.telemetry.watch(program.procs)
    program.telemetry._started().hosts.call_one().get(LIMIT_S)
    program.wait("spans", 4)
    for table in set(TABLES) - LIVE_TABLES:
        for row in program.rows(table):
            words = [word for word in row.values() if isinstance(word, str)]
            assert not [word for word in words if "mesh-telemetry" in word], (table, row)
    meshes = {row["id"] for row in program.rows("meshes")}
    for table, column in (("sent_messages", "actor_mesh_id"), ("messages", "mesh_id")):
        for row in program.rows(table):
            assert row[column] in meshes, (table, row)


def test_an_unknown_table_raises_an_error_that_lists_the_tables(program: Recorded) -> None:
    with pytest.raises(QueryError, match="no table 'sneezes': the tables are active_handlers"):
        program.tables.batches("sneezes", None, None)


def test_every_table_has_columns_for_the_origin_of_its_rows() -> None:
    for name, schema in TABLES.items():
        assert {"timestamp_us", "host", "proc"} <= set(schema.names), name
    assert all(column.text for doc in TABLE_DOCS.values() for column in doc.columns)
