"""Runs each file of tests beside others, `python -m tests.hosts`: they wait more than they work."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.workspace import ROOT

#: Files at a time.
LANES = 4

#: Those that take longest, which begin first; the others follow by name.
LONGEST = (
    "test_links.py",
    "test_security.py",
    "test_attach.py",
    "test_faults.py",
    "test_gateway.py",
    "test_host_death.py",
)

#: What pytest ends with where a choice of tests has left none of a file.
NONE_CHOSEN = 5


def run(path: Path, options: list[str]) -> bool:
    """Runs a file to its end, shows what came of it, and says whether that is well."""
    started = time.monotonic()
    command = [sys.executable, "-m", "tools.twice", str(path.relative_to(ROOT)), *options]
    ended = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    took = time.monotonic() - started
    print(f"== {path.name}, {took:.0f} s\n{ended.stdout}", flush=True)
    return ended.returncode in (0, NONE_CHOSEN)


def main(options: list[str]) -> int:
    """Runs all files with the same options; the exit status says whether all is well."""
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
