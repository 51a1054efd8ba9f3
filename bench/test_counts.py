"""The system calls and context switches of a call stay within limits, on any machine and load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_RUN = Path(__file__).with_name("run.py")
_S_MAX = 180


def test_a_sync_call_stays_within_its_context_switches_and_system_calls() -> None:
    checked = subprocess.run(
        [sys.executable, str(_RUN), "counts", "--check"],
        capture_output=True,
        text=True,
        timeout=_S_MAX,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
