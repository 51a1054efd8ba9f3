"""A worker is killed while a call to it is pending: how long until that call raises."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from drivers.driver import Driver
from record import Recorder
from scale import Scale

_BATCH = 8
_RAISE_S_MAX = 60.0

# Runs beside the client, which is inside `get` when the kill comes: the pause lets it get there.
# CLOCK_MONOTONIC is one clock for all processes of a machine.
_KILLER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(0.01)
    started = time.monotonic()
    os.kill(int(line), signal.SIGKILL)
    print(started, flush=True)
"""


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Kills one worker after the other, each in the middle of a call that never returns."""
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
            driver.start(_BATCH)
            pids = driver.pids()
            for rank in range(_BATCH):
                fifo = Path(folder, f"{len(times)}.fifo")
                took, raised = _kill_one(driver, rank, pids[rank], fifo, killer)
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
    driver: Driver, rank: int, pid: int, fifo: Path, killer: subprocess.Popen[str]
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
    killer.stdin.write(f"{pid}\n")
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
