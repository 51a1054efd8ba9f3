"""The stacks of a process's threads, sampled from outside by py-spy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Frame", "PySpy", "PySpyFailed", "ThreadStack"]

_PROGRAM = "py-spy"
_LIMIT_S = 20.0
_AT_ONCE = 4


class PySpyFailed(Exception):
    """py-spy failed; the message contains the cause and a remedy."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a stack."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of a thread, innermost frame first."""

    id: int
    name: str
    is_active: bool
    holds_gil: bool
    frames: tuple[Frame, ...]


class PySpy:
    """The program py-spy, if it is installed.

    py-spy reads the memory of the other process without stopping it. Only if two such reads are
    inconsistent, a third one stops the process for some milliseconds.
    """

    def __init__(self, program: str | None = None) -> None:
        self._program = program or _found()

    @property
    def is_installed(self) -> bool:
        """Whether py-spy is installed."""
        return self._program is not None

    def look(self, pids: Sequence[int]) -> list[list[ThreadStack] | PySpyFailed]:
        """Sample several processes; return for each its threads, or the error."""
        if not pids:
            return []
        with ThreadPoolExecutor(min(len(pids), _AT_ONCE)) as pool:
            return list(pool.map(self._look_at, pids))

    def _look_at(self, pid: int) -> list[ThreadStack] | PySpyFailed:
        failed: PySpyFailed | None = None
        for how in (["--nonblocking"], ["--nonblocking"], []):
            try:
                return self._dump(pid, how)
            except PySpyFailed as error:
                failed = error
                if error.is_final:
                    break
        assert failed is not None
        return failed

    def _dump(self, pid: int, how: list[str]) -> list[ThreadStack]:
        assert self._program is not None, "called only where it is installed"
        command = [self._program, "dump", "--json", "--pid", str(pid), *how]
        try:
            # A separate session is needed because the processes in the worker's session are agents.
            run = subprocess.run(
                command,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_LIMIT_S,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise PySpyFailed(
                f"py-spy did not respond in {_LIMIT_S:g} s: try again when the host is less busy",
                is_final=True,
            ) from None
        except OSError as error:
            raise PySpyFailed(
                f"py-spy cannot be started: {error}: reinstall it", is_final=True
            ) from None
        if run.returncode:
            raise PySpyFailed(_why(run.stderr.decode(errors="replace")))
        try:
            return [_thread(one) for one in json.loads(run.stdout)]
        except (ValueError, KeyError, TypeError) as error:
            raise PySpyFailed(
                f"py-spy returned no valid stacks ({error}): install py-spy 0.4"
            ) from None


def _thread(dumped: dict[str, Any]) -> ThreadStack:
    return ThreadStack(
        id=int(dumped.get("os_thread_id") or dumped["thread_id"]),
        name=dumped.get("thread_name") or "",
        is_active=bool(dumped.get("active")),
        holds_gil=bool(dumped.get("owns_gil")),
        frames=tuple(
            Frame(one["name"], one["filename"], int(one.get("line") or 0))
            for one in dumped.get("frames", ())
        ),
    )


def _why(said: str) -> str:
    """Return a one-line message for the error output of py-spy."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if "permission denied" in said.lower() or "operation not permitted" in said.lower():
        return (
            "the system does not allow reading the memory of other processes: set "
            "kernel.yama.ptrace_scope=0 on that host, or grant the capability SYS_PTRACE"
        )
    return f"py-spy failed: {lines[0] if lines else 'no output'}"


def _found() -> str | None:
    sibling = Path(sys.executable).parent / _PROGRAM
    return str(sibling) if sibling.is_file() else shutil.which(_PROGRAM)
