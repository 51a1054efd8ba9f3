"""The topics of the dashboard for saved cases of recorded actors."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from mesh_core.case import CaseError, SavedCase
from mesh_telemetry._dash.page_queries import Arguments, PageQueries
from mesh_telemetry._serve.routes import RequestError

__all__ = ["case", "cases"]


def cases(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the newest cases in the folder of the program, newest first.

    The messages of a case are only in the topic `case`.
    """
    program = queries.cases
    try:
        found = program.cases()
    except CaseError as error:
        raise RequestError(502, "failed", str(error)) from error
    job = program.job
    return {
        "folder": str(program.folder),
        "is_recording": program.is_recording,
        "rows": [_row(one, job) for one in found],
    }


def case(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the case in `file` as text, or the reason why it cannot be read."""
    program = queries.cases
    name = Arguments(parameters).text("file")
    try:
        path = program.path(name)
        report = program.report(name)
    except CaseError as error:
        return {"error": str(error)}
    command = f"mesh replay {shlex.quote(str(path))} --trust"
    return {"path": str(path), "command": command, "text": report}


def _row(one: SavedCase, job: str) -> dict[str, Any]:
    return {
        "file": one.path.name,
        "path": str(one.path),
        "saved_us": one.saved_ns // 1000,
        "actor": one.actor,
        "host": one.host,
        "failure": one.failure,
        "messages": one.message_count,
        "bytes": one.size,
        "is_earlier": one.job not in ("", job),
        "error": one.error,
    }
