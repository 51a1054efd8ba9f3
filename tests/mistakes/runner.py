"""Runs the programs of `programs/` and records the output that their users see.

Each program contains one mistake. The file beside it, with the suffix `.txt`, contains the output
that a user sees and the exit status, without the parts that differ between machines and runs.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["PROGRAMS", "expected_file", "seen_by_users"]

#: The programs, by name.
PROGRAMS = {path.stem: path for path in sorted((Path(__file__).parent / "programs").glob("*.py"))}

#: Most programs wait rather than compute.
_CONCURRENT = 4
_LIMIT_S = 60.0

_REPLACED = (
    # Frames: the files of programs by name, files of libraries without line numbers.
    (re.compile(r'File "[^"]*/programs/([a-z_]+\.py)"'), r'File "\1"'),
    (re.compile(r'File "[^"]*/(mesh_[a-z]+/[^"]*\.py)", line \d+'), r'File "\1", line N'),
    (re.compile(r'File "[^"]*/(asyncio/[^"]*\.py)", line \d+'), r'File "\1", line N'),
    (re.compile(r"(?<![\w\"])/[^\s:,\"']*/programs/([a-z_]+\.py)"), r"\1"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"\bport \d{4,}"), "port N"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x..."),
    (re.compile(r"\b\d+\.\d+ s\b"), "N s"),
)
#: Markers below a line of a traceback, which depend on the version of Python.
_MARKERS = re.compile(r"^ *[\^~]+ *$")


def expected_file(name: str) -> Path:
    """Return the file with the expected output of a program."""
    return PROGRAMS[name].with_suffix(".txt")


def seen_by_users(names: list[str]) -> dict[str, str]:
    """Run programs, several at a time, and return the output of each."""
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        return dict(zip(names, pool.map(_seen, names), strict=True))


def _seen(name: str) -> str:
    # Another program, such as nohup, may have set the handler of Ctrl-C to be ignored.
    result = subprocess.run(
        [sys.executable, str(PROGRAMS[name])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        env=_environment(),
        check=False,
        preexec_fn=_restore_interrupt,
    )
    return f"{_normalised(result.stdout)}exit status: {result.returncode}\n"


def _restore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _environment() -> dict[str, str]:
    settings = ("MESH_CONFIG", "MESH_FULL_TRACEBACKS")
    kept = {name: value for name, value in os.environ.items() if name not in settings}
    return {**kept, "PYTHONUNBUFFERED": "1", "PYTHON_COLORS": "0", "COLUMNS": "100"}


def _normalised(text: str) -> str:
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = text.replace(socket.gethostname(), "HOST")
    return "".join(line for line in text.splitlines(True) if not _MARKERS.match(line))
