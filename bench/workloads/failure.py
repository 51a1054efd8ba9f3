"""A worker is killed during a call to it: the time until the call raises."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale

_RAISE_S_MAX = 60.0

# Long enough for the client to be inside `get` when the process is killed.
_PAUSE_S_MIN = 0.01

# Runs next to the client. CLOCK_MONOTONIC is the same for all processes of a machine.
_KILLER = """
import os, signal, sys, time
for line in sys.stdin:
    pid, pause_s = line.split()
    time.sleep(float(pause_s))
    started = time.monotonic()
    os.kill(int(pid), signal.SIGKILL)
    print(started, flush=True)
"""


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Kill the workers in turn, each during a call that never returns."""
    killer = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _KILLER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    times: list[float] = []
    raised = ""
    until = time.monotonic() + scale.kills_s_max
    with tempfile.TemporaryDirectory() as folder:
        while len(times) < scale.kills and time.monotonic() < until:
            driver.start(driver.kills_per_mesh)
            pids = driver.pids()
            for rank in range(driver.kills_per_mesh):
                fifo = Path(folder, f"{len(times)}.fifo")
                # Kills must be spread over the period of a driver that polls.
                pause_s = _PAUSE_S_MIN + random.uniform(0, driver.kill_pause_s_max)
                took, raised = _kill_one(driver, rank, fifo, killer, f"{pids[rank]} {pause_s}")
                times.append(took)
                if time.monotonic() > until:
                    break
            driver.stop_after_kills()
    record.times("detect_", times, "ms")
    record.value("kills", len(times), "", raised=raised)
    killer.kill()
    killer.wait()
    driver.close_after_kills()


def _kill_one(
    driver: Driver, rank: int, fifo: Path, killer: subprocess.Popen[str], order: str
) -> tuple[float, str]:
    assert killer.stdin is not None
    assert killer.stdout is not None
    os.mkfifo(fifo)
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    pending = driver.hang(rank, str(fifo))
    readable, _, _ = select.select([fd], [], [], _RAISE_S_MAX)
    os.close(fd)
    if not readable:
        raise TimeoutError(f"worker {rank} did not start a call within {_RAISE_S_MAX} s")
    killer.stdin.write(f"{order}\n")
    killer.stdin.flush()
    try:
        answer = pending.get(timeout=_RAISE_S_MAX)
    except Exception as error:
        ended = time.monotonic()
        started = float(killer.stdout.readline())
        if ended - started > _RAISE_S_MAX - 1:
            raise
        return ended - started, type(error).__name__
    raise AssertionError(f"a call to a killed worker returned {answer!r}")
