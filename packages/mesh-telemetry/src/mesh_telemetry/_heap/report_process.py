"""Runs the program that reads the files of memray."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh_telemetry._errors import HeapError

if TYPE_CHECKING:
    from mesh_telemetry._heap.options import HeapOptions

__all__ = ["HTML_BYTES_MAX", "ROWS_MAX", "run_report"]

#: The number of rows of a snapshot; the largest are kept.
ROWS_MAX = 10_000
#: The size of a flame graph.
HTML_BYTES_MAX = 64 << 20
_REPORT = Path(__file__).with_name("report.py")
_CAUSE_LEN_MAX = 300


async def run_report(
    path: Path, options: HeapOptions, deadline: float
) -> tuple[list[list[Any]], str]:
    """Return the allocations in a file of memray, and the flame graph as HTML.

    Args:
        path: The file.
        options: The options of the snapshot.
        deadline: The deadline, on `time.monotonic()`.

    Raises:
        HeapError: The file cannot be read.
    """
    html_path = path.with_name(f"html-{path.name}")
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(_REPORT),
            str(path),
            str(html_path),
            str(int(options.is_peak)),
            str(ROWS_MAX),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                output, complaint = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
        if process.returncode:
            raise HeapError(_described(complaint.decode(errors="replace"), process.returncode))
        html = await asyncio.to_thread(_read, html_path)
        return json.loads(output.splitlines()[-1]), html
    except TimeoutError:
        raise HeapError("the snapshot could not be read in time: track for fewer seconds") from None
    except (OSError, ValueError, IndexError) as error:
        raise HeapError(f"the snapshot could not be read ({error}): try again") from None
    finally:
        with suppress(OSError):
            html_path.unlink()


def _read(path: Path) -> str:
    size = path.stat().st_size
    if size > HTML_BYTES_MAX:
        raise HeapError(
            f"the flame graph has {size} bytes, and the limit is {HTML_BYTES_MAX}: track for fewer"
            " seconds, or without native frames and objects"
        )
    return path.read_text(errors="replace")


def _described(complaint: str, status: int) -> str:
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    cause = lines[-1][:_CAUSE_LEN_MAX] if lines else f"it ended with {status}"
    return f"memray cannot read the snapshot: {cause}"
