"""`GET /metrics`: the metrics of a running program for Prometheus, in both formats."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from prometheus_scrapes import Scrape, counters, scraped, scraped_until
from recorded_actors import LIMIT_S, Blocker, Waiter, Worker
from recorded_program import config

from mesh_core import this_host
from mesh_core.testing import kill_proc, wait_until
from mesh_telemetry import Telemetry
from mesh_telemetry._hangs.hang import HANG_KINDS, Culprit, Hang
from mesh_telemetry._hangs.tables import record_hang

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "mesh.json"
CALLS = "mesh_call_duration_seconds_count"


def test_one_scrape_has_processes_actors_calls_and_measurements(place: Path) -> None:
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        procs = this_host().spawn_procs({"n": 2}, name="team")
        workers: Any = procs.spawn("workers", Worker)
        for number in range(3):
            workers.work.call(number).get(LIMIT_S)
        # The last measurements may be written later than the first ones.
        scraped_until(serving, "steps_total", 12)
        scraped_until(serving, "level", -3)
        scraped_until(serving, "size_count", 6)
        scraped_until(serving, "loss", 0.5)
        scrape = scraped_until(serving, CALLS, 6, endpoint="work")
        assert scrape.content_type == "text/plain; version=0.0.4; charset=utf-8"
        assert scrape.total("mesh_hosts", state="up") == 1
        assert scrape.total("mesh_telemetry_hosts_unreachable") == 0
        assert scrape.total("mesh_processes", mesh="team") == 2
        for rank in "01":
            labels = {"mesh": "team", "rank": rank}
            assert scrape.total("mesh_process_resident_memory_bytes", **labels) > 1 << 20
            assert len(scrape.samples("mesh_process_cpu_seconds_total", **labels)) == 1
            assert scrape.total("mesh_messages_received_total", endpoint="work", **labels) == 3
            assert scrape.total("mesh_messages_received_bytes_total", **labels) > 0
            assert scrape.total("steps_total", actor="workers", phase="warm", **labels) == 6
            assert scrape.total("level", actor="workers", **labels) == -1.5
            assert scrape.total("loss", actor="workers", **labels) == 0.25
            assert scrape.total("size_count", **labels) == 3
            assert scrape.total("size_bucket", le="50.0", **labels) == 3
            assert scrape.total("size_bucket", le="25.0", **labels) == 0
        assert scrape.total("mesh_actors", actor="workers", **{"class": "Worker"}) == 2
        assert scrape.total("mesh_messages_sent_total", mesh="root", endpoint="work") == 6
        assert scrape.families["mesh_call_duration_seconds"].type == "histogram"
        procs.stop().get(LIMIT_S)


def test_counters_do_not_decrease_when_processes_exit(place: Path) -> None:
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        procs = this_host().spawn_procs({"n": 2}, name="mortal")
        workers: Any = procs.spawn("workers", Worker)
        workers.work.call(1).get(LIMIT_S)
        scraped_until(serving, CALLS, 2, endpoint="work")
        scraped_until(serving, "steps_total", 4)
        scraped_until(serving, "loss", 0.5)
        before = scraped_until(serving, "level", -0.5, rank="1")
        kill_proc(procs, 1)
        with pytest.raises(Exception, match="SIGKILL"):
            workers.slice(n=1).work.call_one(1).get(LIMIT_S)
        dead = scraped_until(serving, "mesh_processes", 1, mesh="mortal", state="dead")
        check_no_counter_fell(before, dead)
        wait_until(lambda: not scraped(serving).samples("level", rank="1"), LIMIT_S)
        assert not scraped(serving).samples("loss", rank="1"), "its process has ended"
        procs.replace(1)
        # The new process does not record measurements until its recording has begun.
        telemetry.watch(procs)
        workers.work.call(2).get(LIMIT_S)
        scraped_until(serving, "steps_total", 8)
        after = scraped_until(serving, "level", -0.5, rank="1")
        check_no_counter_fell(dead, after)
        assert after.total("steps_total", rank="1") == 4
        procs.stop().get(LIMIT_S)
        check_no_counter_fell(after, scraped_until(serving, "mesh_hosts", 1, state="up"))


def check_no_counter_fell(before: Scrape, after: Scrape) -> None:
    """Check that all counters of the first scrape are in the second one, and not smaller."""
    now = dict(counters(after))
    fallen = {key: (value, now.get(key)) for key, value in counters(before)}
    assert {key: both for key, both in fallen.items() if both[1] is None or both[1] < both[0]} == {}


def test_counters_continue_after_the_telemetry_process_was_killed(place: Path) -> None:
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        procs = this_host().spawn_procs(name="team")
        worker: Any = procs.spawn("worker", Worker)
        worker.work.call_one(1).get(LIMIT_S)
        before = scraped_until(serving, "steps_total", 2)
        (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
        assert handle.rows is not None
        kill_proc(handle.rows)
        worker.work.call_one(2).get(LIMIT_S)
        scraped_until(serving, "steps_total", 4)
        scraped_until(serving, "level", -1)
        check_no_counter_fell(before, scraped_until(serving, CALLS, 2, endpoint="work"))
        procs.stop().get(LIMIT_S)


def test_counters_include_evicted_rows(place: Path) -> None:
    small = config(place, proc_bytes=256 << 10)
    with Telemetry(small) as telemetry, telemetry.serve() as serving:
        procs = this_host().spawn_procs(name="team")
        worker: Any = procs.spawn("worker", Worker)
        for batch in range(20):
            for number in range(100):
                worker.add.call_one(number).get(LIMIT_S)
            scraped_until(serving, CALLS, 100 * (batch + 1), mesh="root", endpoint="add")
        found = telemetry.query("select count(*) as n from sent_messages where endpoint = 'add'")
        assert found.table.to_pylist()[0]["n"] < 2000
        procs.stop().get(LIMIT_S)


def test_a_process_that_does_not_respond_is_counted(place: Path) -> None:
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        procs = this_host().spawn_procs({"n": 2}, name="team")
        workers: Any = procs.spawn("workers", Worker)
        workers.add.call(1).get(LIMIT_S)
        found = telemetry.query("select pid from procs where mesh = 'team' and rank = 1")
        (row,) = found.table.to_pylist()
        os.kill(row["pid"], signal.SIGSTOP)
        try:
            scrape = scraped_until(serving, "mesh_telemetry_processes_unresponsive", 1)
        finally:
            os.kill(row["pid"], signal.SIGCONT)
        assert scrape.total("mesh_processes", mesh="team", state="stopped") == 1
        assert [one.labels["rank"] for one in scrape.samples("mesh_queue_length")] == ["0"]
        scraped_until(serving, "mesh_telemetry_processes_unresponsive", 0)
        procs.stop().get(LIMIT_S)


def test_waiting_messages_count_in_the_queue_of_their_actor(place: Path) -> None:
    released = place / "released"
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        procs = this_host().spawn_procs(name="team")
        blocker: Any = procs.spawn("blocker", Blocker)
        waiter: Any = procs.spawn("waiter", Waiter)
        blocker.set_path.call_one(str(released)).get(LIMIT_S)
        waiting = [waiter.wait.call_one(blocker), blocker.wait_for_file.call_one()]
        waiting.append(blocker.wait_for_file.call_one())
        scrape = scraped_until(serving, "mesh_queue_length", 2, actor="blocker")
        assert scrape.total("mesh_actors", actor="blocker", state="processing") == 1
        released.touch()
        for each in waiting:
            each.get(LIMIT_S)
        released.unlink()
        procs.stop().get(LIMIT_S)


def test_hangs_are_counted_while_they_are_open(place: Path) -> None:
    hang = Hang("blocked", None, (Culprit(3, "blocked", "it sleeps", proc="0.4"),), True)
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        scrape = scraped(serving)
        kinds = [sample.labels["kind"] for sample in scrape.samples("mesh_hangs")]
        assert sorted(kinds) == sorted(HANG_KINDS)
        assert scrape.total("mesh_hangs") == 0
        record_hang(hang, "begin")
        scraped_until(serving, "mesh_hangs", 1, kind="blocked")
        record_hang(hang, "end")
        scraped_until(serving, "mesh_hangs", 0)


def test_the_grafana_dashboard_uses_only_existing_metrics_and_labels(place: Path) -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    wanted = board_selectors(board)
    assert len({name for name, _ in wanted}) > 10
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        procs = this_host().spawn_procs(name="team")
        worker: Any = procs.spawn("worker", Worker, restart="permanent")
        worker.add.call_one(1).get(LIMIT_S)
        with pytest.raises(Exception, match="it is broken"):
            worker.fail.call_one().get(LIMIT_S)
        worker.fail.broadcast()
        wait_until(lambda: scraped(serving).samples("mesh_failures_total"), LIMIT_S)
        scrape = scraped_until(serving, CALLS, 1, endpoint="fail")
        missing = {
            (name, labels)
            for name, labels in wanted
            if not any(labels <= sample.labels.keys() for sample in scrape.samples(name))
        }
        assert missing == set()
        procs.stop().get(LIMIT_S)


def board_selectors(board: dict[str, Any]) -> set[tuple[str, frozenset[str]]]:
    """Return the metrics of all queries of a board, each with the labels that the query uses."""
    queries = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ] + [one["definition"] for one in board["templating"]["list"] if one["type"] == "query"]
    found = set()
    for query in queries:
        groups = ",".join(re.findall(r"\bby \(([^)]*)\)", query))
        grouped = set(re.findall(r"\w+", groups))
        for name, inside in re.findall(r"\b(mesh_\w+)(?:\{([^}]*)\})?", query):
            compared = set(re.findall(r"(\w+)\s*[!=]=?~?\s*\"", inside))
            # Prometheus itself adds this label.
            found.add((name, frozenset((grouped | compared) - {"instance"})))
    return found
