"""Converts lines and failures to OTLP log records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from mesh_telemetry._otlp.requests import Item, attributes_of, resource_of

if TYPE_CHECKING:
    from mesh_telemetry._events.proc_folder import ProcIdentity
    from mesh_telemetry._otlp.options import OtlpConfig
    from mesh_telemetry._rows.segment_tail import NewRows

__all__ = ["LOG_TABLES", "LogConverter"]

LOG_TABLES = ("logs", "failures")
# Severity numbers of stdout, stderr, and failures.
_INFO, _WARN, _ERROR = 9, 13, 17


class LogConverter:
    """Converts rows to log records.

    Args:
        config: The attributes of all processes.
    """

    def __init__(self, config: OtlpConfig) -> None:
        self._config = config

    def convert(
        self, new_rows: Sequence[NewRows], identities: dict[str, ProcIdentity], is_last: bool
    ) -> list[Item]:
        """Return a record for each row."""
        found = []
        for one in new_rows:
            for row in one.tables["logs"]:
                identity = identities.get(row["proc"], one.folder.identity)
                found.append(Item(resource_of(self._config, identity), _line(row)))
            for row in one.tables["failures"]:
                identity = identities.get(row["proc"], one.folder.identity)
                found.append(Item(resource_of(self._config, identity), _failure(row)))
        return found


def _line(row: dict[str, Any]) -> LogRecord:
    is_error = row["stream"] == "stderr"
    attributes = {"log.iostream": row["stream"]} | _process_attributes(row)
    severity = (_WARN, "WARN") if is_error else (_INFO, "INFO")
    return _record(row, severity, row["line"], attributes)


def _failure(row: dict[str, Any]) -> LogRecord:
    reason = row["reason"] or "it has failed"
    kind, colon, text = reason.partition(": ")
    is_exception = row["kind"] == "actor" and bool(colon or kind.isidentifier())
    attributes = {
        "exception.type": kind if is_exception else None,
        "exception.message": text if is_exception else reason,
        "mesh.failure.kind": row["kind"],
        "mesh.failure.cause": row["cause"],
        "mesh.failure.log_tail": row["log_tail"] or None,
        "mesh.failure.pid": row["pid"],
        "process.exit.code": row["exit_code"],
        "mesh.failure.signal": row["signal"],
    }
    record = _record(row, (_ERROR, "ERROR"), reason, attributes | _process_attributes(row))
    record.event_name = "mesh.failure"
    return record


def _process_attributes(row: dict[str, Any]) -> dict[str, Any]:
    return {"mesh.mesh": row["mesh"], "mesh.rank": row["rank"], "mesh.proc": row["proc"]}


def _record(
    row: dict[str, Any], severity: tuple[int, str], body: str, attributes: dict[str, Any]
) -> LogRecord:
    record = LogRecord(
        time_unix_nano=row["timestamp_us"] * 1000,
        observed_time_unix_nano=time.time_ns(),
        severity_text=severity[1],
        body=AnyValue(string_value=body),
        attributes=attributes_of(attributes),
    )
    record.severity_number = severity[0]  # type: ignore[assignment]
    return record
