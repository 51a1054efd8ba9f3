"""A query that only filters and selects, so that hosts send the rows of its result."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mesh_telemetry._query.fragment import Fragment
from mesh_telemetry._query.host_replies import HostReplies, SendFragment
from mesh_telemetry._query.stream import Stream

__all__ = ["StreamingQuery"]


@dataclass(frozen=True)
class StreamingQuery:
    """The fragment that every host runs, and the conversion of its rows to the result.

    Attributes:
        fragment: The fragment, over one table and without parameters.
        sent: The columns that hosts send.
        wanted: The columns of the result.
        rows_max: The maximum number of rows of the result; None for no limit.
    """

    fragment: Fragment
    sent: pa.Schema
    wanted: pa.Schema
    rows_max: int | None

    def stream(
        self,
        send_fragment: SendFragment,
        timeout_s: float,
        memory_max_bytes: int,
        require_full: bool,
    ) -> Stream:
        """Send the fragment to all hosts, and return the result as a stream."""
        (table,) = self.fragment.tables
        host_replies = HostReplies(send_fragment, time.monotonic() + timeout_s, memory_max_bytes)

        def rows() -> Iterator[pa.RecordBatch]:
            left = self.rows_max
            for batch in host_replies.stream(table, self.fragment, self.sent):
                part = batch if left is None else batch.slice(0, left)
                if part.num_rows:
                    yield _renamed(part, self.wanted)
                if left is not None:
                    left -= part.num_rows
                    if left <= 0:
                        return
            host_replies.check(require_full)

        return Stream(self.wanted, rows(), host_replies.coverage)

    def plain(self) -> dict[str, Any]:
        """Return the values as an object for JSON."""
        fragment = self.fragment
        return {
            "sql": fragment.sql,
            "tables": fragment.tables,
            "until_us": fragment.until_us,
            "limits": [fragment.rows_max, fragment.memory_max_bytes, fragment.result_bytes_max],
            "rows_max": self.rows_max,
            "sent": _schema_text(self.sent),
            "wanted": _schema_text(self.wanted),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], deadline_s: float) -> StreamingQuery:
        """Decode the result of `plain`; `deadline_s` is the time limit for hosts in seconds."""
        rows_max, memory_max_bytes, result_bytes_max = plain["limits"]
        fragment = Fragment(
            plain["sql"],
            tuple(plain["tables"]),
            plain["until_us"],
            rows_max,
            memory_max_bytes,
            deadline_s,
            result_bytes_max=result_bytes_max,
        )
        sent, wanted = (_schema_from(plain[name]) for name in ("sent", "wanted"))
        return cls(fragment, sent, wanted, plain["rows_max"])


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema_from(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _renamed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
