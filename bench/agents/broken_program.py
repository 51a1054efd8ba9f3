"""Runs a broken program until it reaches the state to examine, and keeps it in this state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mesh_telemetry import Telemetry

#: Printed when the program has reached the state to examine.
READY = "the program is ready"


@contextmanager
def broken_program() -> Iterator[None]:
    """Record and serve the program; after the block, wait for the end of standard input."""
    with Telemetry() as telemetry, telemetry.serve():
        yield
        print(READY, flush=True)
        sys.stdin.read()
