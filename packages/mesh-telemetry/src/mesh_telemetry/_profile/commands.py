"""The command `mesh profile`, which writes a trace of a program of this user."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

# mesh-jobs, whose command line loads this module, depends on typer.
import typer

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._profile.trace_output import trace_output
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import ServedProgram, served_program

__all__ = ["profile"]

_SILENCE_S = 120.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def profile(
    pid: Annotated[
        int | None, typer.Option(help="The pid of the program, if several serve telemetry.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds to record, starting now.")
    ] = 10.0,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="The output file; compressed if its name ends in .gz."),
    ] = Path("trace.pftrace"),
    since: Annotated[
        str | None,
        typer.Option(
            help="Export since this time: 2026-01-31T12:00:00Z, or seconds since the epoch."
        ),
    ] = None,
    last: Annotated[
        str | None, typer.Option(help="Export this much of the past: 30s, 5m or 1h.")
    ] = None,
) -> None:
    """Write a trace of a running program: its actors, and the messages between them.

    To view it, open ui.perfetto.dev.
    """
    if since is not None and last is not None:
        raise TelemetryError("--since and --last are mutually exclusive: pass only one")
    served = served_program(pid)
    now_us = time.time_ns() // 1000
    if last is not None:
        since_us, until_us = now_us - int(_duration_s(last) * 1e6), now_us
    elif since is not None:
        since_us, until_us = int(_moment_s(since) * 1e6), now_us
    else:
        time.sleep(seconds)
        since_us, until_us = now_us, time.time_ns() // 1000
    length = _fetch(served, max(since_us, 0), until_us, output)
    print(f"wrote {output} ({length} bytes): open it in ui.perfetto.dev")


def _fetch(served: ServedProgram, since_us: int, until_us: int, output: Path) -> int:
    """Write a trace as it arrives; an existing file is replaced when the trace is complete."""
    arguments = urlencode({"since_us": since_us, "until_us": until_us})
    try:
        with trace_output(output) as file, ProgramClient(served) as client:
            for piece in client.pieces(f"/profile?{arguments}", timeout_s=_SILENCE_S):
                file.write(piece)
        return output.stat().st_size
    except OSError as error:
        raise TelemetryError(f"cannot write {str(output)!r}: {error}") from error


def _duration_s(text: str) -> float:
    """Parse `30s`, `5m`, `1h` or `250ms`; a number without a unit is in seconds."""
    number = text.rstrip("smh")
    with suppress(ValueError, KeyError):
        return float(number) * _UNITS_S[text[len(number) :] or "s"]
    raise TelemetryError(f"invalid --last {text}: use a duration such as 30s, 5m or 1h")


def _moment_s(text: str) -> float:
    """Parse a time; without a zone, it is in the time zone of this machine."""
    with suppress(ValueError):
        return float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise TelemetryError(
            f"invalid --since {text}: use a time such as 2026-01-31T12:00:00Z"
        ) from None
    return found.astimezone(UTC).timestamp()
