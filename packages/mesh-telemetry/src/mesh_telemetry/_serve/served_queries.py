"""Queries of other programs, with a deadline and a maximum reply size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from mesh_telemetry._query.client import QueryOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_telemetry._query.client import QueryClient
    from mesh_telemetry._query.coverage import QueryResult
    from mesh_telemetry._query.deadline import Cancellation
    from mesh_telemetry._query.query_request import QueryRequest
    from mesh_telemetry._query.stream import Stream

    Parameters = Sequence[object] | Mapping[str, object] | None

__all__ = ["ServedQueries"]

_TIMEOUT_S = 10.0
# The program holds a reply in memory while it sends it.
_REPLY_BYTES_MAX = 32 << 20


class ServedQueries:
    """Runs queries of other programs.

    Each method is thread-safe, and raises the same errors as `Telemetry.query`.

    Args:
        client: Sends the queries to the query processes.
    """

    def __init__(self, client: QueryClient) -> None:
        self._client = client

    def json(self, query: tuple[str, Parameters, int | None], cancellation: Cancellation) -> bytes:
        """Return the result as JSON."""
        options = _options(cancellation)
        request = self._client.request(*query, "json", options)
        return bytes(self._client.reply(request, options).body)

    def arrow(
        self, query: tuple[str, Parameters, int | None], cancellation: Cancellation
    ) -> QueryResult:
        """Return the result as a table."""
        options = _options(cancellation)
        request = self._client.request(*query, "arrow", options)
        return self._client.query(request, options)

    def stream(
        self, query: tuple[str, Parameters, int | None], cancellation: Cancellation
    ) -> Stream:
        """Return the result as a stream of batches."""
        options = _options(cancellation)
        request: QueryRequest = self._client.request(*query, "stream", options)
        return self._client.stream(request, options)

    def columns(self, sql: str, parameters: list[object], cancellation: Cancellation) -> pa.Schema:
        """Return the columns of a result without computing it."""
        options = _options(cancellation)
        request = self._client.request(sql, parameters, None, "columns", options)
        return pa.ipc.read_schema(pa.py_buffer(self._client.reply(request, options).body))


def _options(cancellation: Cancellation) -> QueryOptions:
    return QueryOptions(
        _TIMEOUT_S, is_outside=True, bytes_max=_REPLY_BYTES_MAX, cancellation=cancellation
    )
