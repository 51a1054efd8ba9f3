"""`mesh top` in a terminal: keys in, characters out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from top_program import program

from mesh_core.testing import wait_until

LIMIT_S = 60.0
COMMAND = Path(__file__).with_name("top_command.py")


class Terminal:
    """An invisible terminal in a separate tmux server."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"

    def run(self, command: str) -> None:
        """Start a command in the terminal."""
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "150", "-y", "40", command)

    def press(self, *keys: str) -> None:
        """Press keys."""
        self._tmux("send-keys", *keys)

    def seen(self) -> str:
        """Return the visible text; empty if the command has ended."""
        done = self._call("capture-pane", "-p")
        return done.stdout if done.returncode == 0 else ""

    def wait_for(self, text: str) -> str:
        """Wait for a text, and return the visible text."""
        try:
            return wait_until(lambda: self.seen() if text in self.seen() else "", LIMIT_S)
        except AssertionError:
            raise AssertionError(f"{text!r} is not seen:\n{self.seen()}") from None

    def is_over(self) -> bool:
        """Return whether the command has ended."""
        return self._call("has-session").returncode != 0

    def close(self) -> None:
        """Close the terminal and kill all its processes."""
        self._call("kill-server")

    def _tmux(self, *words: str) -> None:
        done = self._call(*words)
        assert done.returncode == 0, done.stderr

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        # A parent process that imports readline exports the size of its terminal, and programs
        # prefer these variables to the actual size.
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
        }
        return subprocess.run(
            ["tmux", "-S", self._socket, *words],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={**environment, "LC_ALL": "C.UTF-8"},
        )


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal that is closed after the test; its socket has a short path."""
    folder = Path(tempfile.mkdtemp(prefix="mesh-top-"))
    opened = Terminal(folder)
    try:
        yield opened
    finally:
        opened.close()
        shutil.rmtree(folder)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_user_inspects_a_program_in_a_terminal(
    place: Path, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with program(place) as running:
        terminal.run(shlex.join([sys.executable, str(COMMAND), "--refresh", "0.3"]))
        seen = terminal.wait_for("team[1]")
        assert str(running.pid) in seen
        assert "MSG/S" in seen
        terminal.press("/")
        terminal.wait_for("name or class")
        terminal.press("-l", "trainers")
        terminal.press("Enter")
        wait_until(lambda: "root 0.0" not in terminal.seen(), LIMIT_S)
        terminal.press("g")
        terminal.press("j")
        # The selected line may still change while the filter takes effect.
        terminal.wait_for("team[0]  0.")
        terminal.press("Tab")
        terminal.wait_for("trainers[0]")
        terminal.press("Escape")
        terminal.wait_for("office[0]")
        terminal.press("3")
        terminal.wait_for("hello")
        terminal.press("?")
        terminal.wait_for("Follow logs")
        terminal.press("q")
        terminal.press("q")
        wait_until(terminal.is_over, LIMIT_S)
