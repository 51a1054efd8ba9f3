"""Telemetry closes in bounded time, regardless of the state of its processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from query_attacks import children
from recorded_actors import LIMIT_S
from recorded_program import config

from mesh_core.testing import proc_pid, wait_until
from mesh_telemetry import Telemetry

# A second until the first check, a reply timeout of five, and slack for a busy machine.
_CLOSE_S = 20.0


@pytest.mark.parametrize("is_template", [False, True], ids=["telemetry", "template"])
def test_a_suspended_process_is_killed_when_telemetry_closes(
    place: Path, is_template: bool
) -> None:
    telemetry = Telemetry(config(place)).start()
    telemetry.query("select 1", timeout=LIMIT_S)
    (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
    assert handle.rows is not None
    host = proc_pid(handle.rows)
    found = [host, *children(host)]
    os.kill(found[1] if is_template else host, signal.SIGSTOP)
    began = time.monotonic()
    telemetry.close()
    assert time.monotonic() - began < _CLOSE_S
    # Descendants of a killed process exit a moment later.
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in found), LIMIT_S)
