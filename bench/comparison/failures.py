"""Runs the scenarios of `outcomes.py` with each system, and observes them from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.accounting import descendants, end_leftovers, reap, wait_ended
from bench.comparison.outcomes import LOST_HOST_S_MAX
from bench.comparison.systems import System
from bench.measure import ended, environment
from tests.hosts.memory_cgroup import create_memory_cgroup
from tests.hosts.world import Host, HostProcess, World
from tools.workspace import ROOT

_RUN_S_MAX = 120.0
#: After the death of the program, its processes are counted for this long, in seconds.
_OBSERVED_S = 15.0
_MEMORY_BYTES = 2 << 30
_COUNTED_AFTER_S = (1.0, 5.0, _OBSERVED_S)
_NOT_ENDED = {"error": "", "text": "the program did not end", "seconds": _RUN_S_MAX}


def outcomes(system: System, interpreter: str) -> Mapping[str, dict[str, Any]]:
    """Return the observations of a program with this system in each scenario."""
    found = {name: _seen(system, interpreter, name) for name in ("killed", "hung")}
    found["out-of-memory"] = _out_of_memory(system, interpreter)
    found["host-lost"] = _host_lost(system, interpreter)
    found["controller"] = _controller_killed(system, interpreter)
    return found


def _command(system: System, interpreter: str, scenario: str) -> list[str]:
    return [interpreter, "-m", "bench.comparison.outcomes", system.driver, scenario]


def _seen(
    system: System, interpreter: str, scenario: str, before: Sequence[str] = ()
) -> dict[str, Any]:
    command = [*before, *_command(system, interpreter, scenario)]
    out, err, status = ended(command, _RUN_S_MAX)
    end_leftovers()
    if isinstance(status, str):
        return _NOT_ENDED
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    why = f"the program ended with status {status}: {err.strip()[-300:]}"
    return {"error": "", "text": why, "seconds": 0.0}


def _out_of_memory(system: System, interpreter: str) -> dict[str, Any]:
    """Run the scenario in a memory cgroup, whose limit the kernel enforces."""
    try:
        cgroup = create_memory_cgroup(f"mesh-comparison-{os.getpid()}", _MEMORY_BYTES)
    except OSError as error:
        return {"error": "", "text": f"not measured: {error}", "seconds": 0.0}
    # The shell joins the cgroup and becomes the program, so that all of its processes are inside.
    enter = ["sh", "-c", f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"', "sh"]
    try:
        return _seen(system, interpreter, "out-of-memory", enter)
    finally:
        with suppress(OSError):
            cgroup.rmdir()


def _host_lost(system: System, interpreter: str) -> dict[str, Any]:
    """Cut the power of an emulated host during a call to the worker on it."""
    prefix = Path(interpreter).parent.parent
    with (
        tempfile.TemporaryDirectory() as folder,
        World(["program", "worker"], shared=[Path(folder), ROOT, prefix]) as world,
        open(Path(folder, "errors"), "w+") as errors,
    ):
        near, far = world["program"], world["worker"]
        hosts = ["--hosts", near.address, far.address, folder]

        def start(host: Host, scenario: str) -> HostProcess:
            command = [*_command(system, interpreter, scenario), *hosts]
            path = {"PYTHONPATH": str(ROOT)}
            return host.popen(
                command, stdout=subprocess.PIPE, stderr=errors.fileno(), env=path, cwd=ROOT
            )

        with start(far, "serve"), start(near, "host-lost") as program:
            begun = _next_object(program, _RUN_S_MAX)
            if not begun.get("begun"):
                errors.seek(0)
                return begun or {**_NOT_ENDED, "text": f"it did not start: {errors.read()[-300:]}"}
            cut_at = time.monotonic()
            far.power_cut()
            found = _next_object(program, LOST_HOST_S_MAX + _RUN_S_MAX)
    if not found:
        return _NOT_ENDED
    found["seconds"] = round(found.pop("seen_at", cut_at) - cut_at, 3)
    return found


def _next_object(process: HostProcess, limit_s: float) -> dict[str, Any]:
    """Return the next JSON object that a process prints, or an empty one if it prints none."""
    assert process.stdout is not None
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        return {}
    finally:
        timer.cancel()


def _controller_killed(system: System, interpreter: str) -> dict[str, Any]:
    """Kill the program alone, and count its processes afterwards."""
    program = subprocess.Popen(
        _command(system, interpreter, "controller"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    assert program.stdout is not None
    line = next((line for line in program.stdout if line.startswith("{")), "")
    if not line:
        program.kill()
        program.wait()
        end_leftovers()
        return {"text": "the program did not start", "left": {}}
    pids = sorted({*json.loads(line)["pids"], *descendants(program.pid)})
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    started = time.monotonic()
    left: dict[str, int] = {}
    for after_s in _COUNTED_AFTER_S:
        wait_ended(_alive(pids), timeout_s=max(0.0, started + after_s - time.monotonic()))
        left[f"{after_s:g}"] = len(_alive(pids))
    end_leftovers()
    return {"processes": len(pids), "left": left}


def _alive(pids: Sequence[int]) -> list[int]:
    reap()
    alive = []
    for pid in pids:
        with suppress(OSError, IndexError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                alive.append(pid)
    return alive
