"""Converts spans of the program and calls of endpoints to OTLP spans.

If spans have W3C trace context ids, these are used. Otherwise ids are derived from the numbers of
spans and messages; a call then forms a trace with the spans inside it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from mesh_telemetry._otlp.requests import Item, attributes_of, resource_of
from mesh_telemetry._rows.attributes import json_attributes
from mesh_telemetry._rows.columns import mixed

if TYPE_CHECKING:
    from mesh_telemetry._events.proc_folder import ProcIdentity
    from mesh_telemetry._otlp.options import OtlpConfig
    from mesh_telemetry._otlp.requests import Resource
    from mesh_telemetry._rows.segment_tail import NewRows

    Row = dict[str, Any]

__all__ = ["TRACE_TABLES", "SpanConverter"]

TRACE_TABLES = ("spans", "span_events", "sent_messages", "messages", "message_status_events")
_OPEN_MAX = 100_000
_KNOWN_MAX = 200_000
_TRACE, _CLIENT, _SERVER = 1, 2, 3
_NEVER_ENDED = "its process has ended"


class _Call(NamedTuple):
    """One side of a call that has ended."""

    resource: Resource
    message_id: int
    kind: int
    begin_us: int
    end_us: int
    endpoint: str | None
    sent_in: str | None
    error: str | None


class _ProcState:
    """Spans and messages of a process that have begun but not ended."""

    def __init__(self) -> None:
        self.spans: OrderedDict[int, tuple[Row, Span]] = OrderedDict()
        self.sent: OrderedDict[int, Row] = OrderedDict()
        self.received: OrderedDict[int, Row] = OrderedDict()
        self.served: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.last_us = 0


class SpanConverter:
    """Converts rows to spans when they have ended.

    Args:
        config: The attributes of all processes, and whether to export calls.
    """

    def __init__(self, config: OtlpConfig) -> None:
        self._config = config
        self._procs: dict[str, _ProcState] = {}
        # Trace ids of spans, and of messages from the spans inside them.
        self._traces: OrderedDict[str, bytes] = OrderedDict()
        self._message_traces: OrderedDict[int, bytes] = OrderedDict()
        # Ended calls wait for one round, until the span that sent them is known if it exists.
        self._waiting: list[_Call] = []

    def convert(
        self, new_rows: Sequence[NewRows], identities: dict[str, ProcIdentity], is_last: bool
    ) -> list[Item]:
        """Return the spans that have ended."""
        ready, self._waiting = self._waiting, []
        found: list[Item] = []
        for one in new_rows:
            found += self._convert(one)
        if is_last:
            ready += self._waiting
            self._waiting = []
        for call in ready:
            span = self._span_of_call(call)
            if span is not None:
                found.append(Item(call.resource, span))
        return found

    def _convert(self, new_rows: NewRows) -> list[Item]:
        resource = resource_of(self._config, new_rows.folder.identity)
        state = self._procs.setdefault(new_rows.folder.path.name, _ProcState())
        rows = [
            (row["timestamp_us"], order, table, row)
            for order, table in enumerate(_ORDER)
            for row in new_rows.tables[table]
        ]
        rows.sort(key=lambda each: each[:2])
        found = []
        for at_us, _, table, row in rows:
            state.last_us = max(state.last_us, at_us)
            if table == "spans":
                _remember(
                    state.spans, row["id"], (row, self._span_without_end(row, state)), _OPEN_MAX
                )
            elif table == "span_events":
                ended = row["event_type"] == "close" and state.spans.pop(row["id"], None)
                if ended:
                    why = "an exception ended it" if row["is_error"] else None
                    found.append(Item(resource, _with_end(ended[1], at_us, why)))
            elif self._config.calls:
                self._message(table, row, state, resource, new_rows.folder.identity)
        if new_rows.is_over:
            found += [
                Item(resource, _with_end(span, state.last_us, _NEVER_ENDED))
                for _, span in state.spans.values()
            ]
            for number, (begin_us, _) in state.served.items():
                self._end_served(state, resource, number, begin_us, state.last_us, _NEVER_ENDED)
            del self._procs[new_rows.folder.path.name]
        return found

    def _span_without_end(self, row: Row, state: _ProcState) -> Span:
        """Return a span without its end."""
        served = row.get("message_id")
        parent: str | None
        if row.get("trace_id") is not None:
            name, trace = row["span_id"], bytes.fromhex(row["trace_id"])
            parent = row["parent_span_id"]
            if served is not None and row["parent_id"] is None:
                _remember(self._message_traces, served, trace, _KNOWN_MAX)
                parent = _call_span_id(served, _SERVER) if self._config.calls else parent
        else:
            name, parent, trace = self._derived_ids(row, state)
        _remember(self._traces, name, trace, _KNOWN_MAX)
        attributes: dict[str, Any] = {}
        if row["actor_id"] is not None:
            attributes["mesh.actor_id"] = str(row["actor_id"])
        return Span(
            trace_id=trace,
            span_id=bytes.fromhex(name),
            parent_span_id=b"" if parent is None else bytes.fromhex(parent),
            name=row["name"],
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=row["timestamp_us"] * 1000,
            attributes=attributes_of(json_attributes(row["fields_json"]) | attributes),
        )

    def _derived_ids(self, row: Row, state: _ProcState) -> tuple[str, str | None, bytes]:
        """Derive the ids of a span from numbers: its id, its parent and its trace."""
        name = f"{row['id']:016x}"
        if row["parent_id"] is not None:
            parent = f"{row['parent_id']:016x}"
            return name, parent, self._traces.get(parent) or _derived_trace_id(row["parent_id"])
        actor_id = row["actor_id"]
        if self._config.calls and actor_id is not None:
            served = [number for number, (_, of) in state.served.items() if of == actor_id]
            if len(served) == 1:
                return name, _call_span_id(served[0], _SERVER), _derived_trace_id(served[0])
        return name, None, _derived_trace_id(row["id"])

    def _message(
        self, table: str, row: Row, state: _ProcState, resource: Resource, identity: ProcIdentity
    ) -> None:
        if table == "sent_messages":
            if row["call"] is not None:
                _remember(state.sent, row["id"], row, _OPEN_MAX)
            return
        if table == "messages":
            if row["call"] is not None:
                _remember(state.received, row["id"], row, _OPEN_MAX)
            return
        number, status, at_us = row["message_id"], row["status"], row["timestamp_us"]
        if number is None:
            return
        error = f"fault {row['code']}" if row["code"] else None
        if status == "active":
            actor_id = int(mixed(identity.number, row["mesh_id"]))
            _remember(state.served, number, (at_us, actor_id), _OPEN_MAX)
        elif status in ("complete", "failed"):
            served = state.served.pop(number, None)
            if served is not None:
                self._end_served(state, resource, number, served[0], at_us, error)
        elif status == "refused":
            state.received.pop(number, None)
        elif status in ("returned", "cancelled"):
            sent = state.sent.pop(number, None)
            if sent is not None:
                error = "cancelled" if status == "cancelled" else error
                self._add_call(resource, sent, _CLIENT, number, sent["timestamp_us"], at_us, error)

    def _end_served(
        self,
        state: _ProcState,
        resource: Resource,
        number: int,
        begin_us: int,
        end_us: int,
        error: str | None,
    ) -> None:
        received = state.received.pop(number, {})
        self._add_call(resource, received, _SERVER, number, begin_us, end_us, error)

    def _add_call(
        self,
        resource: Resource,
        row: Row,
        kind: int,
        number: int,
        begin_us: int,
        end_us: int,
        error: str | None,
    ) -> None:
        call = _Call(
            resource,
            number,
            kind,
            begin_us,
            end_us,
            row.get("endpoint"),
            row.get("parent_span_id"),
            error,
        )
        self._waiting.append(call)

    def _span_of_call(self, call: _Call) -> Span | None:
        """Return a side of a call as a span; None if its trace is unknown on this host."""
        is_server = call.kind == _SERVER
        served_in = self._message_traces.get(call.message_id)
        link: list[Span.Link] = []
        parent = b""
        if call.sent_in is not None:
            trace = self._traces.get(call.sent_in) or served_in
            if trace is None:
                return None
            client = bytes.fromhex(_call_span_id(call.message_id, _CLIENT))
            parent = client if is_server else bytes.fromhex(call.sent_in)
        elif is_server and served_in is not None:
            # The caller was in no span, so the span inside the call began a new trace.
            trace = served_in
            other = bytes.fromhex(_call_span_id(call.message_id, _CLIENT))
            link = [Span.Link(trace_id=_derived_trace_id(call.message_id), span_id=other)]
        else:
            trace = _derived_trace_id(call.message_id)
            parent = bytes.fromhex(_call_span_id(call.message_id, _CLIENT)) if is_server else b""
        attributes = {"rpc.system": "mesh", "rpc.method": call.endpoint}
        return _with_end(
            Span(
                trace_id=trace,
                span_id=bytes.fromhex(_call_span_id(call.message_id, call.kind)),
                parent_span_id=parent,
                name=call.endpoint or "call",
                kind=Span.SPAN_KIND_SERVER if is_server else Span.SPAN_KIND_CLIENT,
                start_time_unix_nano=call.begin_us * 1000,
                attributes=attributes_of(attributes),
                links=link,
            ),
            call.end_us,
            call.error,
        )


#: The order of rows with equal times.
_ORDER = ("sent_messages", "messages", "message_status_events", "spans", "span_events")


def _with_end(span: Span, at_us: int, error: str | None) -> Span:
    span.end_time_unix_nano = max(at_us * 1000, span.start_time_unix_nano)
    if error is not None:
        span.status.code = Status.STATUS_CODE_ERROR
        span.status.message = error
    return span


def _call_span_id(number: int, kind: int) -> str:
    """Return the span id of one side of a call as text."""
    return f"{int(mixed(number, kind)) or 1:016x}"


def _derived_trace_id(number: int) -> bytes:
    """Return the trace id for a span or call without one; both sides derive the same."""
    high, low = int(mixed(number, _TRACE)), number
    return high.to_bytes(8) + low.to_bytes(8)


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any, len_max: int) -> None:
    known[key] = value
    if len(known) > len_max:
        known.popitem(last=False)
