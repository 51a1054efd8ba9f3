"""Run many small programs, each in a separate interpreter, and check how they end.

    python tests/soak/run.py --programs 1000 [--jobs 2] [--seed 0] [--only 17]

Each must exit with the right status before its deadline, and leave no process, file or socket.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.programs import MARK, left_behind
from tests.soak.random_programs import Program, program

DEADLINE_S = 40.0
_FILES_LIMIT_S = 2.0


class Verdict(NamedTuple):
    """The result of one program."""

    program: Program
    seconds: float
    complaint: str
    """Empty if the program passed."""


def judge(one: Program) -> Verdict:
    """Run a program and check what it leaves behind."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return _judge(one, Path(folder))


def _judge(one: Program, folder: Path) -> Verdict:
    script, temporary = folder / "program.py", folder / "tmp"
    script.write_text(one.code)
    temporary.mkdir()
    mark = uuid.uuid4().hex
    env = {**os.environ, MARK: mark, "TMPDIR": str(temporary)}
    started = time.monotonic()
    with (
        open(folder / "out", "w") as out,
        open(folder / "err", "w") as err,
        subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=folder,
        ) as process,
    ):  # fmt: skip
        complaint = _see_off(one, process, folder / "out")
    seconds = time.monotonic() - started
    if not complaint and (left := left_behind(mark)):
        complaint = f"left processes: {'; '.join(left)}"
    if not complaint and (files := _left_files(temporary)):
        complaint = f"left files: {files}"
    if complaint:
        complaint += "\n" + _last(folder / "out") + _last(folder / "err")
    return Verdict(one, seconds, complaint)


def _see_off(one: Program, process: subprocess.Popen[bytes], out: Path) -> str:
    until = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while one.send is not None and process.poll() is None:
        if "ready" in out.read_text(errors="replace"):
            process.send_signal(one.send)
            break
        if time.monotonic() > until:
            process.kill()
            return "it was never ready"
        pause.wait(0.005)
    try:
        status = process.wait(max(until - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        return f"it had not ended after {DEADLINE_S:.0f} s"
    return "" if status == one.status else f"status {status}, expected {one.status}"


def _left_files(temporary: Path) -> list[str]:
    until = time.monotonic() + _FILES_LIMIT_S
    pause = threading.Event()
    while (found := os.listdir(temporary)) and time.monotonic() < until:
        pause.wait(0.005)
    return found


def _last(path: Path) -> str:
    text = path.read_text(errors="replace")[-3000:]
    return "".join(f"    {path.name}| {line[:300]}\n" for line in text.splitlines()[-25:])


def soak(numbers: list[int], seed: int, jobs: int, *, is_loud: bool = True) -> list[Verdict]:
    """Run programs, some concurrently, and print failures immediately."""
    verdicts = []
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(lambda number: judge(program(number, seed)), numbers):
            verdicts.append(verdict)
            if verdict.complaint and is_loud:
                print(
                    f"FAILED {verdict.program.name} (seed {seed}): {verdict.complaint}", flush=True
                )
            elif is_loud and len(verdicts) % 100 == 0:
                print(f"... {len(verdicts)} programs", flush=True)
    return verdicts


def table(verdicts: list[Verdict]) -> str:
    """Return a table of the programs by kind of end, with their durations."""
    by_end: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_end[verdict.program.end].append(verdict)
    lines = [f"{'ended by':<38}{'programs':>9}{'failed':>8}{'median s':>10}{'longest s':>11}"]
    for end, group in sorted(by_end.items()):
        seconds = sorted(verdict.seconds for verdict in group)
        failed = sum(bool(verdict.complaint) for verdict in group)
        middle, longest = seconds[len(seconds) // 2], seconds[-1]
        lines.append(f"{end:<38}{len(group):>9}{failed:>8}{middle:>10.2f}{longest:>11.2f}")
    return "\n".join(lines)


def main() -> int:
    """Run the soak and return an exit status: 0 if all programs passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run the program of this number alone")
    options = parser.parse_args()
    numbers = list(range(options.programs)) if options.only is None else [options.only]
    started = time.monotonic()
    verdicts = soak(numbers, options.seed, options.jobs)
    failed = sum(bool(verdict.complaint) for verdict in verdicts)
    print(table(verdicts))
    print(f"{len(verdicts) - failed} passed, {failed} failed in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
