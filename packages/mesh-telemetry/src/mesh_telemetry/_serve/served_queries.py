"""Queries of other programs, with a deadline and a maximum reply size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from mesh_telemetry._query.client import Asking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_telemetry._query.client import QueryClient
    from mesh_telemetry._query.coverage import Answer
    from mesh_telemetry._query.deadline import Cancellation
    from mesh_telemetry._query.question import Question
    from mesh_telemetry._query.stream import Stream

    Parameters = Sequence[object] | Mapping[str, object] | None

__all__ = ["ServedQueries"]

_TIMEOUT_S = 10.0
# The program holds a reply in memory while it sends it.
_REPLY_BYTES_MAX = 32 << 20


class ServedQueries:
    """Answers queries of other programs.

    Each method is thread-safe, and raises the same errors as `Telemetry.query`.

    Args:
        client: Sends the queries to the query processes.
    """

    def __init__(self, client: QueryClient) -> None:
        self._client = client

    def json(
        self, question: tuple[str, Parameters, int | None], cancellation: Cancellation
    ) -> bytes:
        """Return the answer as JSON."""
        asking = _asking(cancellation)
        asked = self._client.question(*question, "json", asking)
        return bytes(self._client.reply(asked, asking).body)

    def arrow(
        self, question: tuple[str, Parameters, int | None], cancellation: Cancellation
    ) -> Answer:
        """Return the answer as a table."""
        asking = _asking(cancellation)
        asked = self._client.question(*question, "arrow", asking)
        return self._client.answer(asked, asking)

    def stream(
        self, question: tuple[str, Parameters, int | None], cancellation: Cancellation
    ) -> Stream:
        """Return the answer as a stream of batches."""
        asking = _asking(cancellation)
        asked: Question = self._client.question(*question, "stream", asking)
        return self._client.stream(asked, asking)

    def columns(self, sql: str, parameters: list[object], cancellation: Cancellation) -> pa.Schema:
        """Return the columns of an answer without computing it."""
        asking = _asking(cancellation)
        asked = self._client.question(sql, parameters, None, "columns", asking)
        return pa.ipc.read_schema(pa.py_buffer(self._client.reply(asked, asking).body))


def _asking(cancellation: Cancellation) -> Asking:
    return Asking(
        _TIMEOUT_S, is_outside=True, bytes_max=_REPLY_BYTES_MAX, cancellation=cancellation
    )
