"""The kernel's work for one call: context switches and system calls of client and worker.

Counts hardly depend on the machine or its load, so the project's checks use them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.accounting import context_switches
from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale

_TRACED_CALLS = 500
_ROW = re.compile(r"^\s*\d+\.\d+\s+\S+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$")


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Count for a call from a plain thread that waits for the reply."""
    driver.start(1)
    who = {"client": os.getpid(), "worker": driver.pids()[0]}
    for i in range(scale.warm_calls):
        driver.call(i)
    _switches(driver, who, scale, record)
    if shutil.which("strace") is not None:
        _system_calls(driver, who, record)
    driver.stop()


def _switches(driver: Driver, who: dict[str, int], scale: Scale, record: Recorder) -> None:
    """Report the median block, because a block that another load has disturbed is meaningless."""
    blocks: list[dict[str, float]] = []
    for _ in range(max(scale.blocks, 5)):
        before = {name: context_switches(pid) for name, pid in who.items()}
        for i in range(scale.block_calls):
            driver.call(i)
        block: dict[str, float] = {}
        for name, pid in who.items():
            voluntary, involuntary = context_switches(pid)
            block[name] = (voluntary - before[name][0]) / scale.block_calls
            block[f"{name}_involuntary"] = (involuntary - before[name][1]) / scale.block_calls
        block["total"] = sum(block.values())
        blocks.append(block)
    blocks.sort(key=lambda block: block["total"])
    middle = blocks[len(blocks) // 2]
    total = statistics.median(block["total"] for block in blocks)
    record.value("switches", total, "/call", **{k: round(v, 2) for k, v in middle.items()})


def _system_calls(driver: Driver, who: dict[str, int], record: Recorder) -> None:
    """Trace both sides in turn: a traced process is slower, so its peer waits longer."""
    by_side = {name: _traced(driver, pid) for name, pid in who.items()}
    totals = {name: sum(counts.values()) for name, counts in by_side.items()}
    most = {
        name: {call: round(n, 2) for call, n in counts.items() if n >= 0.05}
        for name, counts in by_side.items()
    }
    record.value("system_calls", sum(totals.values()), "/call", **totals, by_name=most)


def _traced(driver: Driver, pid: int) -> dict[str, float]:
    """Return the number of system calls per call, most frequent first."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "strace")
        strace = subprocess.Popen(
            ["strace", "-f", "-c", "-o", str(report), "-p", str(pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert strace.stderr is not None
        said = strace.stderr.readline()
        if "attached" not in said:
            strace.wait()
            raise OSError(f"strace cannot attach to a process: {said.strip()}")
        for i in range(_TRACED_CALLS):
            driver.call(i)
        strace.send_signal(signal.SIGINT)
        strace.wait()
        strace.stderr.close()
        rows = [m for line in report.read_text().splitlines() if (m := _ROW.match(line))]
    counts = {m[2]: int(m[1]) / _TRACED_CALLS for m in rows if m[2] != "total"}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
