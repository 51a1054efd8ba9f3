"""A program with workers that is lost in the middle of its work."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

HOLD_S = 60
_HEAD = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from kept_actors import *
from mesh_core import *

credentials = Credentials.load({folder!r})
configure(host_lease_s={lease_s}, heartbeat_s=0.3)
hosts = attach_to_workers({workers!r}, credentials=credentials, hold_s={hold_s})
"""
_TAIL = """
print("ready", flush=True)
signal.pause()
"""


class LostProgram:
    """A program that attaches to workers, does some work and then waits to be lost."""

    def __init__(
        self,
        folder: Path,
        workers: list[str],
        code: str,
        lease_s: float,
        hold_s: float = HOLD_S,
    ) -> None:
        head = _HEAD.format(
            tests=str(Path(__file__).parent),
            folder=str(folder / "controller"),
            workers=workers,
            lease_s=lease_s,
            hold_s=hold_s,
        )
        script = folder / "lost.py"
        script.write_text(head + textwrap.dedent(code) + _TAIL)
        self._err = open(folder / "lost.err", "w+")
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=self._err, text=True
        )
        self.said: list[str] = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                break
            self.said.append(line.rstrip("\n"))
        else:
            raise AssertionError(f"it ended before it was ready:\n{self.errors()}")

    def errors(self) -> str:
        """What it has said about failures."""
        self._err.seek(0)
        return self._err.read()

    def kill(self) -> None:
        """Loses it for good."""
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Stops it, or lets it go on."""
        self._process.send_signal(number)

    def wait(self, limit_s: float = 30.0) -> int:
        """Waits until it has ended by itself; gives its exit status."""
        return self._process.wait(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._err.close()
