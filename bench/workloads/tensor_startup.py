"""The time from start to the first value of two processes, in turn with importing torch alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from bench.drivers.tensor_program import TensorDriver
from bench.record import Recorder
from bench.scale import Scale

_BARE = "import os, torch; os.write(1, b'x')"


def first_fetch(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Start fresh interpreters and wait until each has written a byte."""
    for program in (_BARE, driver.api.first_fetch):
        _seconds(program)
    for _ in range(2 if driver.is_peer else scale.imports):
        record.value("import_torch", _seconds(_BARE), "s")
        record.value("first_fetch", _seconds(driver.api.first_fetch), "s")


def _seconds(program: str) -> float:
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        written = os.read(child.stdout.fileno(), 1)
        took = time.perf_counter() - started
        child.stdout.read()
    if written != b"x" or child.returncode != 0:
        raise OSError(f"a program ended with {child.returncode}: run it by hand: {program}")
    return took
