"""The progress of transfers, shown while a program waits for them."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, remotemount
from mesh_fs._mount.progress import TransferProgress, progress_reporter

LIMIT_S = 60.0
UNPACK = MountOptions(backend="unpack")
HALF = TransferProgress(
    hosts=4, whole_hosts=1, files=7, total_bytes=4_000_000, here_bytes=2_000_000
)


def test_requested_progress_prints_a_final_line_without_a_terminal(
    source: Path, mountpoint: Path, cache: CacheOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=UNPACK) as handler:
        handler.wait(LIMIT_S, progress=None)
        handler.wait(LIMIT_S)
        assert capsys.readouterr().err == ""
        handler.wait(LIMIT_S, progress=True)
        (line,) = capsys.readouterr().err.splitlines()
        assert line == "3 files on 1 of 1 hosts, 3.0 MB of 3.0 MB"


def test_a_progress_line_shows_the_rate_and_the_remaining_time() -> None:
    assert HALF.line(0.0, 0) == "7 files on 1 of 4 hosts, 2.0 MB of 4.0 MB"
    line = HALF.line(elapsed_s=2.0, first_bytes=1_000_000)
    assert line == "7 files on 1 of 4 hosts, 2.0 MB of 4.0 MB, 500.0 kB/s, 4 s left"


@pytest.mark.parametrize("progress", [True, None])
def test_a_terminal_shows_a_progress_bar(
    progress: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    screen, terminal = pty.openpty()
    with open(screen, "rb", buffering=0) as shown, open(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("TERM", "xterm")
        with progress_reporter(progress) as tell:
            assert tell is not None
            tell(HALF)
        # The output arrives in pieces.
        text = b""
        while not (b"7 files on 1 of 4 hosts" in text and b"2.0/4.0 MB" in text):
            text += os.read(shown.fileno(), 1 << 16)
