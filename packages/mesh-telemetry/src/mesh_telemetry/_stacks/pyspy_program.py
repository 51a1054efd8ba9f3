"""The program py-spy, run for one process at a time.

It reads the memory of the other process from outside and does not need its interpreter, so it also
works if a thread never releases the GIL.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mesh_telemetry._errors import PySpyError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DumpOutput", "PySpy", "PySpyRunError", "found_program"]

_PROGRAM = "py-spy"
_VARIABLE = "PYSPY_BIN"
_NATIVE = "--native"
_OUTPUT_LEN_MAX = 256 << 20
_CAUSE_LEN_MAX = 300
# Reads without pausing the process may be inconsistent. They are repeated, and then the process is
# paused.
_NONBLOCKING_TRIES = 2
# If py-spy is interrupted, it writes its results and releases the other process.
_INTERRUPTED_S = 1.0
_PIECE = 1 << 16


class PySpyRunError(Exception):
    """Raised if py-spy cannot read a process; the text has the cause and a remedy."""

    def __init__(self, cause: str, *, is_final: bool = False) -> None:
        super().__init__(cause)
        self.is_final = is_final


def found_program() -> str:
    """Return the path of py-spy on this host.

    Raises:
        PySpyError: py-spy is not installed.
    """
    named = os.environ.get(_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise PySpyError(
                f"{_VARIABLE} is {named!r}, which is not a program here: set it to py-spy, or "
                "unset it"
            )
        return found
    beside = Path(sys.executable).parent / _PROGRAM
    found = str(beside) if beside.is_file() else shutil.which(_PROGRAM)
    if found is None:
        raise PySpyError(
            "py-spy is not installed on this host: pip install py-spy there, or set its path in"
            f" {_VARIABLE}"
        )
    return found


class DumpOutput(NamedTuple):
    """The output of py-spy for the stacks of a process."""

    output: bytes
    """The stacks as JSON."""
    is_native: bool
    """Whether it has native frames."""
    warnings: tuple[str, ...] = ()


class PySpy:
    """Runs py-spy until it is closed, for use in one event loop.

    Args:
        program: The path of py-spy.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._running: set[asyncio.subprocess.Process] = set()
        self._is_closed = False

    async def dump(self, pid: int, options: Sequence[str], deadline: float) -> DumpOutput:
        """Return the stacks of a process; without native frames if those cannot be read.

        Args:
            pid: The process.
            options: Options of `py-spy dump`.
            deadline: The deadline, on `time.monotonic()`.

        Raises:
            PySpyRunError: The stacks could not be read.
        """
        command = ["dump", "--json", "--pid", str(pid), *options]
        if _NATIVE not in options:
            return DumpOutput(
                await self._dump_with_retries(command, pid, deadline), is_native=False
            )
        try:
            return DumpOutput(await self._output(command, pid, deadline), is_native=True)
        except PySpyRunError as failed:
            if failed.is_final:
                raise
            warning = f"without native frames: {failed}"
        command.remove(_NATIVE)
        return DumpOutput(await self._dump_with_retries(command, pid, deadline), False, (warning,))

    async def _dump_with_retries(self, command: Sequence[str], pid: int, deadline: float) -> bytes:
        ways = [["--nonblocking"]] * _NONBLOCKING_TRIES
        if not _is_stopped(pid):
            # A process that is already stopped cannot be paused.
            ways = [*ways, []]
        for way in ways[:-1]:
            try:
                return await self._output([*command, *way], pid, deadline)
            except PySpyRunError as failed:
                if failed.is_final:
                    raise
        return await self._output([*command, *ways[-1]], pid, deadline)

    async def record(self, pid: int, options: Sequence[str], into: Path, deadline: float) -> str:
        """Return a flame graph of a process as SVG.

        Args:
            pid: The process.
            options: Options of `py-spy record`. The recording ends early if the process exits.
            into: A temporary file for the output; it is removed.
            deadline: The deadline, on `time.monotonic()`.

        Raises:
            PySpyRunError: The process could not be sampled.
        """
        command = ["record", "--format", "flamegraph", "--output", str(into), "--pid", str(pid)]
        try:
            await self._output([*command, *options], pid, deadline)
            return await asyncio.to_thread(into.read_text, errors="replace")
        except OSError as error:
            raise PySpyRunError(f"py-spy did not write a flame graph: {error.strerror}") from None
        finally:
            with suppress(OSError):
                os.unlink(into)

    async def close(self) -> None:
        """Stop running instances of py-spy, and those about to start."""
        self._is_closed = True
        await asyncio.gather(*(_kill_process(process) for process in list(self._running)))

    async def _output(self, arguments: Sequence[str], pid: int, deadline: float) -> bytes:
        """Run py-spy and return its standard output."""
        was_stopped = _is_stopped(pid)
        try:
            # A separate session, so that Ctrl-C in the program does not interrupt py-spy.
            process = await asyncio.create_subprocess_exec(
                self._program,
                *arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise PySpyRunError(
                f"cannot start {self._program!r} ({error.strerror}): reinstall py-spy",
                is_final=True,
            ) from None
        self._running.add(process)
        try:
            if self._is_closed:
                raise PySpyRunError("telemetry was closed", is_final=True)
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                output, complaint = await _communicate(process)
        except TimeoutError:
            raise PySpyRunError(
                "py-spy did not finish in time: increase the timeout, or try again when the host "
                "is less busy",
                is_final=True,
            ) from None
        finally:
            self._running.discard(process)
            await _kill_process(process)
            # Otherwise py-spy has resumed what it paused, and someone else may have stopped it.
            was_killed = process.returncode is None or process.returncode < 0
            if was_killed and not was_stopped:
                _resume(pid)
        if process.returncode:
            raise _failed(complaint.decode(errors="replace"), pid)
        return output


async def _communicate(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None, "it was started with pipes"
    assert process.stderr is not None, "it was started with pipes"
    output, complaint = await asyncio.gather(_read(process.stdout), _read(process.stderr))
    await process.wait()
    return output, complaint


async def _read(stream: asyncio.StreamReader) -> bytes:
    output = bytearray()
    while piece := await stream.read(_PIECE):
        output += piece
        if len(output) > _OUTPUT_LEN_MAX:
            raise PySpyRunError(
                f"the output of py-spy exceeds {_OUTPUT_LEN_MAX} bytes: dump without local "
                "variables",
                is_final=True,
            )
    return bytes(output)


async def _kill_process(process: asyncio.subprocess.Process) -> None:
    """Stop a program, first with SIGINT, because it may have paused another process."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    ending = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([ending], timeout=_INTERRUPTED_S)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
    await asyncio.wait([ending], timeout=_INTERRUPTED_S)


def _state(pid: int) -> str:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _is_stopped(pid: int) -> bool:
    return _state(pid) in ("T", "t")


def _resume(pid: int) -> None:
    """Resume a process that a killed py-spy has left stopped."""
    if _state(pid) == "T":
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def _failed(output: str, pid: int) -> PySpyRunError:
    """Build the error from the error output of py-spy."""
    lowered = output.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered:
        return PySpyRunError(
            f"py-spy is not permitted to read the memory of process {pid}: set "
            "kernel.yama.ptrace_scope to 0 on that host, or give its container the capability "
            "SYS_PTRACE",
            is_final=True,
        )
    before, _, _ = output.partition("Stack backtrace:")
    lines = [line.strip() for line in before.splitlines()]
    text = " ".join(line for line in lines if line)[:_CAUSE_LEN_MAX]
    return PySpyRunError(f"py-spy failed: {text or 'no output'}")
