"""Spans with external trace ids: the connecting call is exported between them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2")

from mesh_telemetry._events.proc_folder import ProcIdentity
from mesh_telemetry._otlp.options import OtlpConfig
from mesh_telemetry._otlp.traces import TRACE_TABLES, SpanConverter
from mesh_telemetry._rows.segment_tail import NewRows

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER, CALLEE = "00f067aa0ba902b7", "00f067aa0ba902b8"
MESSAGE = 77


def fresh(slot: int, is_over: bool = False, **tables: list[dict[str, Any]]) -> NewRows:
    identity = ProcIdentity(0, "here", slot, 0, 17, "team", 0, 100 + slot, 0, slot)
    folder = SimpleNamespace(path=Path(f"/{slot}"), identity=identity)
    return NewRows(
        cast(Any, folder), {name: tables.get(name, []) for name in TRACE_TABLES}, is_over
    )


def began(name: str, at_us: int, parent: str | None, message: int | None) -> dict[str, Any]:
    return {
        "id": at_us,
        "name": name,
        "actor_id": None,
        "fields_json": "{}",
        "timestamp_us": at_us,
        "parent_id": None,
        "trace_id": TRACE,
        "span_id": name,
        "parent_span_id": parent,
        "message_id": message,
    }


def ended(at_us: int, number: int) -> dict[str, Any]:
    return {"id": number, "timestamp_us": at_us, "event_type": "close", "is_error": False}


def changed(at_us: int, status: str, code: int = 0) -> dict[str, Any]:
    return {
        "timestamp_us": at_us,
        "message_id": MESSAGE,
        "status": status,
        "code": code,
        "mesh_id": 17,
    }


def message(at_us: int, sent_in: str | None) -> dict[str, Any]:
    said = {"id": MESSAGE, "timestamp_us": at_us, "call": 5, "bytes": 1}
    return said | {"endpoint": "work", "parent_span_id": sent_in}


@pytest.mark.parametrize("calls", [True, False])
def test_a_call_is_exported_between_the_spans_of_both_sides(calls: bool) -> None:
    converter = SpanConverter(OtlpConfig(calls=calls))
    caller = fresh(
        1,
        spans=[began(CALLER, 10, None, None)],
        span_events=[ended(90, 10)],
        sent_messages=[message(20, CALLER)],
        message_status_events=[changed(80, "returned")],
    )
    callee = fresh(
        2,
        messages=[message(30, CALLER)],
        message_status_events=[changed(40, "active"), changed(70, "complete")],
        spans=[began(CALLEE, 50, CALLER, MESSAGE)],
        span_events=[ended(60, 50)],
    )
    # The callee's rows may be read before the caller's.
    found = converter.convert([callee, caller], {}, False) + converter.convert([], {}, True)
    spans = {one.message.span_id: one.message for one in found}
    assert {one.trace_id.hex() for one in spans.values()} == {TRACE}
    inner, outer = spans[bytes.fromhex(CALLEE)], spans[bytes.fromhex(CALLER)]
    assert outer.parent_span_id == b""
    if not calls:
        assert len(found) == 2
        assert inner.parent_span_id == outer.span_id
        return
    assert len(found) == 4
    served = spans[inner.parent_span_id]
    called = spans[served.parent_span_id]
    assert called.parent_span_id == outer.span_id
    assert (served.name, served.kind) == ("work", served.SPAN_KIND_SERVER)
    assert (called.name, called.kind) == ("work", called.SPAN_KIND_CLIENT)
    assert (served.start_time_unix_nano, served.end_time_unix_nano) == (40_000, 70_000)
    assert (called.start_time_unix_nano, called.end_time_unix_nano) == (20_000, 80_000)


def test_open_spans_are_closed_when_their_process_exits() -> None:
    converter = SpanConverter(OtlpConfig())
    lost = fresh(
        2,
        is_over=True,
        messages=[message(30, None)],
        message_status_events=[changed(40, "active")],
        spans=[began(CALLEE, 50, None, MESSAGE)],
    )
    found = [one.message for one in converter.convert([lost], {}, True)]
    assert [one.status.message for one in found] == ["its process has ended"] * 2
    assert {one.end_time_unix_nano for one in found} == {50_000}
    # The caller was not in a span, so the two traces are linked.
    (server,) = (one for one in found if one.kind == one.SPAN_KIND_SERVER)
    assert server.trace_id.hex() == TRACE
    assert len(server.links) == 1
