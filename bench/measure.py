"""Runs one runner in a separate process, and collects its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.accounting import end_leftovers
from bench.machine import ForeignLoad, wait_quiet
from bench.plan import Run
from bench.results import Results

_ROOT = Path(__file__).resolve().parent.parent
_RUN_S_MAX = 240.0
_QUIET_CORES = 0.25


def measure(
    run: Run, interpreter: str, index: int, results: Results, *, is_quick: bool, quiet_wait_s: float
) -> dict[str, Any] | None:
    """Run one runner, add its output to the results, and return its problem, if any.

    Args:
        run: The driver, workload and placement.
        interpreter: The Python in whose environment the driver's packages are installed.
        index: The number of the round.
        results: Receives the measurements.
        is_quick: Whether small sizes are enough.
        quiet_wait_s: How long to wait until other processes stop using the machine, in seconds.
    """
    is_quiet = wait_quiet(_QUIET_CORES, quiet_wait_s)
    command = [interpreter, "-m", "bench.runner", run.driver, run.workload, run.placement]
    started = time.monotonic()
    with ForeignLoad() as load:
        out, err, status = ended(command + (["--quick"] if is_quick else []), _RUN_S_MAX)
        left = end_leftovers()
    context = {
        "round": index,
        "foreign_cores": round(load.cores, 2),
        "was_quiet": is_quiet,
        "left_behind": left,
    }
    for text in out.splitlines():
        if text.startswith('{"driver"'):
            results.lines.append({**json.loads(text), **context})
    took = time.monotonic() - started
    outcome = "" if status == 0 else f"  FAILED ({status}): {err.strip()[-300:]}"
    print(
        f"round {index}  {run.driver:<22} {run.workload:<22} {run.placement:<7}"
        f"{took:6.1f} s  others {load.cores:.2f} cores{outcome}",
        file=sys.stderr,
        flush=True,
    )
    if status == 0:
        return None
    return {**asdict(run), **context, "status": status, "stderr": err[-4000:]}


def environment() -> dict[str, str]:
    """Return the environment of a runner, which finds this package and caches bytecode."""
    # Without a bytecode cache every process would compile every module, which is not a normal case.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    return {**inherited, "PYTHONPATH": path}


def ended(command: Sequence[str], limit_s: float) -> tuple[str, str, int | str]:
    """Run a command to its end, and return its output, its errors and its status or problem."""
    runner = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        out, err = runner.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        runner.send_signal(signal.SIGKILL)
        # Its children keep the pipes open, so they must be killed before the pipes can end.
        end_leftovers()
        out, err = runner.communicate()
        return out, err, f"no end after {limit_s:g} s"
    return out, err, runner.returncode
