"""A query in the form in which it is sent to the process that runs it, and the reply."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mesh_telemetry._errors import CoverageError, QueryError, TelemetryError
from mesh_telemetry._query.coverage import Coverage, HostFailure, TransferStats

__all__ = [
    "Form",
    "QueryAttempt",
    "QueryReply",
    "QueryRequest",
    "coverage_from",
    "failure_reply",
    "plain_coverage",
]

#: The content of the reply: Arrow IPC, JSON for HTTP, only the columns, or a stream. For a stream,
#: it is the fragment for every host, or Arrow IPC if the rows need further work.
Form = Literal["arrow", "json", "columns", "stream"]
_ERRORS = {one.__name__: one for one in (CoverageError, QueryError, TelemetryError)}
_HEAD = struct.Struct("<I")


@dataclass(frozen=True)
class QueryRequest:
    """A query as the user wrote it.

    Attributes:
        sql: Its text, not yet parsed.
        parameters: Arrow scalars, by position or by name.
        until_us: Ignore rows of a later time, in microseconds since the epoch; None for all rows.
        require_full: Whether a host that does not respond is an error.
        form: The content of the reply.
        bytes_max: The maximum size of the reply; None for the general limits of queries.
        added: The tables that packages and the program have added, pickled.
    """

    sql: str
    parameters: Sequence[object] | Mapping[str, object] | None
    until_us: int | None
    require_full: bool
    form: Form
    bytes_max: int | None
    added: bytes


@dataclass(frozen=True)
class QueryAttempt:
    """A query for one attempt to run it.

    Attributes:
        request: The query.
        timeout_s: The time left, in seconds.
        only_host: The name of the host if there is only one; None if there are several.
    """

    request: QueryRequest
    timeout_s: float
    only_host: str | None


@dataclass(frozen=True)
class QueryReply:
    """The reply to a query.

    Attributes:
        head: A JSON object: `coverage`, `error`, or `stream`.
        body: The content in the requested form.
    """

    head: Mapping[str, Any]
    body: bytes | memoryview

    def packed(self) -> bytes:
        """Return the reply in the form in which it is sent."""
        head = json.dumps(self.head).encode()
        return b"".join((_HEAD.pack(len(head)), head, self.body))

    @classmethod
    def unpacked(cls, sent: bytes) -> QueryReply:
        """Decode a reply.

        Raises:
            TelemetryError: The error with which the query failed.
        """
        (length,) = _HEAD.unpack_from(sent)
        head = json.loads(sent[_HEAD.size : _HEAD.size + length])
        error = head.get("error")
        if error is not None:
            if error["failed"]:
                failed = tuple((host, cause) for host, cause in error["failed"])
                raise CoverageError(error["text"], failed)
            raise _ERRORS.get(error["type"], TelemetryError)(error["text"])
        return cls(head, memoryview(sent)[_HEAD.size + length :])


def failure_reply(error: TelemetryError) -> bytes:
    """Return a reply that raises an error when it is decoded."""
    kind = next((name for name, one in _ERRORS.items() if type(error) is one), "TelemetryError")
    failed = error.failed if isinstance(error, CoverageError) else ()
    head = {"error": {"type": kind, "text": str(error), "failed": failed}}
    return QueryReply(head, b"").packed()


def plain_coverage(coverage: Coverage) -> dict[str, Any]:
    """Return the coverage of a result as an object for JSON."""
    return dataclasses.asdict(coverage) | {"is_full": coverage.is_full}


def coverage_from(plain: Mapping[str, Any]) -> Coverage:
    """Decode the result of `plain_coverage`."""
    return Coverage(
        tuple(plain["queried"]),
        tuple(plain["replied"]),
        tuple(HostFailure(**one) for one in plain["failed"]),
        tuple(TransferStats(**one) for one in plain["shipped"]),
    )
