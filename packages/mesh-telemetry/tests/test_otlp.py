"""Exports to a collector: the exported data, and the effects of collector faults on a program."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver, receiving, said
from recorded_actors import LIMIT_S

from mesh_core import Actor, endpoint, get_meter, span, this_host
from mesh_core.testing import kill_proc, wait_until
from mesh_telemetry import OtlpConfig, Telemetry, TelemetryConfig
from mesh_telemetry._otlp.options import otlp_from


class Worker(Actor):
    @endpoint
    def work(self, number: int) -> int:
        meter = get_meter()
        with span("outer", {"number": number}), span("inner"):
            meter.create_counter("steps", unit="1").add(2, {"phase": "warm"})
            meter.create_histogram("size").record(30)
            meter.create_gauge("loss").set(0.25)
        return number

    @endpoint
    def say(self, text: str) -> None:
        print(text, flush=True)

    @endpoint
    def fail(self) -> None:
        raise ValueError("it is broken")

    @endpoint
    def last(self, text: str) -> None:
        with span(text):
            print(text, flush=True)


class Boss(Actor):
    @endpoint
    def order(self, worker: Worker, number: int) -> int:
        return worker.work.call_one(number).get()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


def recorded(place: Path, receiver: Receiver, **options: Any) -> Telemetry:
    otlp = OtlpConfig(
        receiver.url,
        {"Authorization": "Bearer of the test"},
        interval_s=0.1,
        resource={"deployment.environment": "test"},
        **options,
    )
    return Telemetry(TelemetryConfig(directory=str(place), otlp=otlp))


def test_metrics_logs_and_traces_are_each_exported_once(place: Path, receiver: Receiver) -> None:
    with recorded(place, receiver):
        procs = this_host().spawn_procs({"n": 2}, name="team")
        boss = procs.slice(n=0).spawn("boss", Boss)
        worker = procs.slice(n=1).spawn("worker", Worker)
        worker.work.call_one(0).get()
        for number in range(1, 4):
            assert boss.order.call_one(worker, number).get() == number
        worker.say.call_one("a line of the worker").get()
        mortal: Any = procs.spawn("mortal", Worker, restart="permanent")
        mortal.slice(n=0).fail.broadcast()

        def lines() -> list[str]:
            return [record.body.string_value for _, record in receiver.logs()]

        wait_until(lambda: "a line of the worker" in lines(), LIMIT_S)
        wait_until(lambda: "ValueError: it is broken" in lines(), LIMIT_S)
        mortal.stop().get(LIMIT_S)
        procs.stop().get()
    # The remaining data was exported at shutdown.
    check_traces(receiver)
    check_metrics(receiver)
    assert lines().count("a line of the worker") == 1
    (failure,) = [record for _, record in receiver.logs() if record.event_name == "mesh.failure"]
    assert failure.severity_text == "ERROR"
    assert said(failure)["exception.type"] == "ValueError"
    assert said(failure)["exception.message"] == "it is broken"
    assert said(failure)["mesh.mesh"] == "mortal"
    assert receiver.headers["Authorization"] == "Bearer of the test"


def check_traces(receiver: Receiver) -> None:
    """Check that each span is exported once, with the right chain of parents."""
    spans = {one.span_id: (resource, one) for resource, one in receiver.spans()}
    assert len(spans) == len(receiver.spans())
    outer = [(resource, one) for resource, one in spans.values() if one.name == "outer"]
    assert sorted(said(one)["number"] for _, one in outer) == [0, 1, 2, 3]
    for resource, one in outer:
        assert resource["service.name"] == "mesh"
        assert resource["deployment.environment"] == "test"
        assert (resource["mesh.mesh"], resource["mesh.rank"]) == ("team", 1)
        assert resource["process.pid"] > 0
        _, served = spans[one.parent_span_id]
        assert served.kind == served.SPAN_KIND_SERVER
        assert one.trace_id == served.trace_id
        # The caller was not in a span: if spans have separate traces, it is a link.
        before = served.links[0] if served.links else None
        caller, called = spans[served.parent_span_id if before is None else before.span_id]
        assert called.kind == called.SPAN_KIND_CLIENT
        assert called.trace_id == (served.trace_id if before is None else before.trace_id)
        assert called.start_time_unix_nano <= served.start_time_unix_nano
        assert served.end_time_unix_nano <= called.end_time_unix_nano
        is_first = said(one)["number"] == 0
        assert caller["mesh.mesh"] == ("root" if is_first else "team")
        assert caller["process.pid"] != resource["process.pid"]
    inner = [one for _, one in spans.values() if one.name == "inner"]
    assert sorted(one.parent_span_id for one in inner) == sorted(one.span_id for _, one in outer)


def check_metrics(receiver: Receiver) -> None:
    """Check the sums of the metrics."""
    steps = [metric for _, metric in receiver.metrics("steps")]
    assert {metric.sum.aggregation_temporality for metric in steps} == {1}
    points = [point for metric in steps for point in metric.sum.data_points]
    assert sum(point.as_int for point in points) == 8
    assert {said(point)["phase"] for point in points} == {"warm"}
    sizes = [point for _, one in receiver.metrics("size") for point in one.histogram.data_points]
    assert sum(point.count for point in sizes) == 4
    assert all(len(point.bucket_counts) == len(point.explicit_bounds) + 1 for point in sizes)
    losses = [point for _, one in receiver.metrics("loss") for point in one.gauge.data_points]
    assert [point.as_double for point in losses] == [0.25] * 4
    for name in ("mesh.messages.sent", "mesh.messages.received", "mesh.messages.sent.bytes"):
        found = [point for _, one in receiver.metrics(name) for point in one.sum.data_points]
        assert sum(point.as_int for point in found) >= 4, name
    calls = [
        point
        for _, one in receiver.metrics("mesh.call.duration")
        for point in one.histogram.data_points
    ]
    assert sum(point.count for point in calls) >= 8
    lengths = receiver.metrics("mesh.queue.length")
    assert lengths[-1][1].gauge.data_points[0].as_int == 0
    assert receiver.metrics("mesh.telemetry.export.dropped") == []


def test_a_collector_that_was_down_receives_all_data_after_it_recovers(
    place: Path, receiver: Receiver
) -> None:
    receiver.status = 503
    with recorded(place, receiver):
        procs = this_host().spawn_procs(name="team")
        worker = procs.spawn("worker", Worker)
        for number in range(3):
            worker.work.call_one(number).get()
        wait_until(lambda: receiver.status_counts.get(503, 0) >= 6, LIMIT_S)
        assert receiver.spans() == []
        worker.work.call_one(3).get()
        receiver.status = 200
        wait_until(lambda: len(outer(receiver)) == 4, LIMIT_S)
        procs.stop().get()
    assert Counter(outer(receiver)) == Counter(range(4))
    points = [point for _, one in receiver.metrics("steps") for point in one.sum.data_points]
    assert sum(point.as_int for point in points) == 8


def outer(receiver: Receiver) -> list[int]:
    """Return the numbers of the received spans."""
    return [said(one)["number"] for _, one in receiver.spans() if one.name == "outer"]


def test_refused_data_is_not_sent_to_the_collector_again(place: Path, receiver: Receiver) -> None:
    receiver.status = 400
    with recorded(place, receiver, logs=False, metrics=False):
        procs = this_host().spawn_procs(name="team")
        worker = procs.spawn("worker", Worker)
        worker.work.call_one(1).get()
        wait_until(lambda: receiver.status_counts.get(400, 0) >= 1, LIMIT_S)
        receiver.status = 200
        worker.work.call_one(2).get()
        wait_until(lambda: 2 in outer(receiver), LIMIT_S)
        procs.stop().get()
    assert outer(receiver).count(2) == 1
    assert receiver.logs() == []


def test_a_hanging_collector_does_not_block_the_program(place: Path, receiver: Receiver) -> None:
    receiver.release.clear()
    telemetry = recorded(place, receiver)
    with telemetry:
        procs = this_host().spawn_procs(name="team")
        worker = procs.spawn("worker", Worker)
        worker.work.call_one(1).get()
        found = telemetry.query("select count(*) as n from spans", timeout=30, require_full=True)
        assert found.table.to_pylist() == [{"n": 2}]
        procs.stop().get()
        before = time.monotonic()
    # The export of the remaining data is limited to some seconds.
    assert time.monotonic() - before < LIMIT_S


def test_the_last_rows_of_a_killed_process_are_exported(place: Path, receiver: Receiver) -> None:
    receiver.status = 503
    with recorded(place, receiver) as telemetry:
        procs = this_host().spawn_procs({"n": 2}, name="mortal")
        worker = procs.spawn("worker", Worker).slice(n=1)
        worker.last.call_one("its last words").get()
        # A query makes the process write its buffered rows.
        found = telemetry.query("select name from spans", timeout=30, require_full=True)
        assert found.table.to_pylist() == [{"name": "its last words"}]
        kill_proc(procs, 1)
        with pytest.raises(Exception, match="SIGKILL"):
            worker.work.call_one(1).get()
        receiver.status = 200

        def deaths() -> list[Any]:
            return [
                (resource, record)
                for resource, record in receiver.logs()
                if said(record).get("mesh.failure.kind") == "proc"
            ]

        ((resource, death),) = wait_until(deaths, LIMIT_S)
        assert said(death)["mesh.failure.signal"] == 9
        assert resource["mesh.rank"] == 1
        wait_until(lambda: "its last words" in [one.name for _, one in receiver.spans()], LIMIT_S)
        procs.replace(1)
        procs.stop().get()
    names = [one.name for _, one in receiver.spans()]
    assert names.count("its last words") == 1


def test_a_killed_telemetry_process_resumes_its_export(place: Path, receiver: Receiver) -> None:
    with recorded(place, receiver) as telemetry:
        procs = this_host().spawn_procs(name="team")
        worker = procs.spawn("worker", Worker)
        for number in (1, 2):
            worker.work.call_one(number).get()
            wait_until(lambda number=number: number in outer(receiver), LIMIT_S)
        (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
        assert handle.rows is not None
        kill_proc(handle.rows)
        worker.work.call_one(3).get()
        wait_until(lambda: 3 in outer(receiver), LIMIT_S)
        procs.stop().get()
    # Data that was sent but not yet recorded as sent is sent again: at most the second span.
    counts = Counter(outer(receiver))
    assert (counts[1], counts[3]) == (1, 1)
    assert counts[2] in (1, 2)


def test_a_telemetry_process_that_is_killed_at_startup_is_restarted(
    place: Path, receiver: Receiver
) -> None:
    with recorded(place, receiver) as telemetry:
        procs = this_host().spawn_procs(name="team")
        worker = procs.spawn("worker", Worker)
        (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
        assert handle.rows is not None
        kill_proc(handle.rows)
        worker.work.call_one(3).get()
        wait_until(lambda: 3 in outer(receiver), LIMIT_S)
        procs.stop().get()


def test_opentelemetry_variables_configure_the_export() -> None:
    found = otlp_from(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
            "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=y",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,team=blue",
            "OTEL_SERVICE_NAME": "trainer",
            "OTEL_METRIC_EXPORT_INTERVAL": "250",
        }
    )
    assert found is not None
    assert found.headers == {"api-key": "a b", "x": "y"}
    assert found.resource == {"team": "blue"}
    assert (found.service_name, found.interval_s) == ("trainer", 0.25)
    assert "a b" not in repr(found)
    assert otlp_from({}) is None
    with pytest.raises(ValueError, match="URL"):
        otlp_from({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"})
    with pytest.raises(ValueError, match="milliseconds"):
        otlp_from(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRIC_EXPORT_INTERVAL": "soon"}
        )
