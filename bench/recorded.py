"""One of two programs that differ only in whether they are recorded.

    python -m bench.recorded mesh_telemetry on

It reads commands such as `pipelined 20000` from standard input, replies to each with a line of
JSON, and exits at the end of the input.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from typing import Any

from bench.accounting import own_bytes


class RecordedProgram:
    """A program in a separate process with one worker, recorded or not.

    Args:
        driver: The module of its driver.
        is_recorded: Whether it is recorded.
    """

    def __init__(self, driver: str, *, is_recorded: bool) -> None:
        words = [sys.executable, "-m", "bench.recorded", driver, "on" if is_recorded else "off"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, word: str, n: int = 0) -> Any:
        """Execute a command in the program and return its reply."""
        assert self._process.stdin is not None, "both ends are pipes"
        assert self._process.stdout is not None, "both ends are pipes"
        self._process.stdin.write(f"{word} {n}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            # Other output begins differently.
            if line.startswith('{"said"'):
                return json.loads(line)["said"]
        raise RuntimeError(f"{self._process.args} has ended")

    def close(self) -> None:
        """Stop the program and wait for its exit."""
        self._process.communicate()


def main() -> None:
    """Execute the commands on standard input."""
    name, way = sys.argv[1:]
    driver = importlib.import_module(f"bench.drivers.{name}").driver()
    if way == "on":
        driver.start_recorded(1)
    else:
        driver.start(1)
    for line in sys.stdin:
        word, n = line.split()
        print(json.dumps({"said": _done(driver, word, int(n))}), flush=True)
    driver.close()


def _done(driver: Any, word: str, n: int) -> Any:
    if word == "worker":
        return driver.pids()[0]
    if word == "own":
        return own_bytes(driver.pids()[0])
    if word == "folder":
        return driver.folder_bytes(driver.pids()[0])
    if word == "kept":
        return driver.kept_bytes()
    started = time.perf_counter()
    getattr(driver, word)(n)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
