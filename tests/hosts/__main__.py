"""Run several test files concurrently (`python -m tests.hosts`): most of their time is waiting."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.workspace import ROOT

#: Number of files that run at the same time.
LANES = 4

#: The slowest files, which start first. The others follow in alphabetical order.
LONGEST = (
    "test_links.py",
    "test_security.py",
    "test_attach.py",
    "test_faults.py",
    "test_gateway.py",
    "test_host_death.py",
)

#: Exit status of pytest if a selection of tests deselects all tests of a file.
NONE_CHOSEN = 5


def run(path: Path, options: list[str]) -> bool:
    """Run a file to completion, print its output, and return whether it passed."""
    started = time.monotonic()
    command = [sys.executable, "-m", "tools.twice", str(path.relative_to(ROOT)), *options]
    ended = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    took = time.monotonic() - started
    print(f"== {path.name}, {took:.0f} s\n{ended.stdout}", flush=True)
    return ended.returncode in (0, NONE_CHOSEN)


def main(options: list[str]) -> int:
    """Run all files with the same options and return an exit status: 0 if all passed."""
    order = {name: place for place, name in enumerate(LONGEST)}
    files = sorted(
        Path(__file__).parent.glob("test_*.py"),
        key=lambda path: (order.get(path.name, len(order)), path.name),
    )
    with ThreadPoolExecutor(LANES) as threads:
        results = list(threads.map(lambda path: run(path, options), files))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
