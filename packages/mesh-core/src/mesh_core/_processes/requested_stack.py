"""The line that a process executes, read by its supervisor without the help of the process.

The process lets `faulthandler` write its stacks to a file in memory when a signal arrives. This
works in any state of the interpreter, also while C code holds the GIL. The supervisor reads the
file through `/proc`.
"""

import contextlib
import faulthandler
import os
import re
import signal
import time

__all__ = ["offer_stack", "requested_place"]

_NAME = "mesh-stack"
# The C library uses the first real-time signals.
_SIGNAL = signal.SIGRTMIN + 11
_LOOK_S = 0.002
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
# Files that are not of the program.
_STANDARD = os.path.dirname(os.__file__) + os.sep
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}mesh_core{os.sep}", "<frozen", "<string>")


def offer_stack() -> None:
    """Let the supervisor read the stacks of this process from now on."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        file = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        faulthandler.register(_SIGNAL, file, all_threads=True, chain=False)


def requested_place(pid: int, limit_s: float) -> str | None:
    """Return the innermost line of the program that a process executes.

    Args:
        pid: The process.
        limit_s: How long to wait for its stacks, in seconds.

    Returns:
        Function, file and line, such as `load at train.py:31`; None if the process does not offer
        its stacks, does not reply in time, or runs no code of the program.
    """
    if not _catches(pid):
        return None
    until = time.monotonic() + limit_s
    with contextlib.suppress(OSError):
        file = _opened(pid)
        if file is None:
            return None
        try:
            begun = os.fstat(file).st_size
            os.kill(pid, _SIGNAL)
            # On a busy machine, the process may be interrupted in the middle of its dump.
            while time.monotonic() < until:
                time.sleep(_LOOK_S)
                dump = os.pread(file, os.fstat(file).st_size - begun, begun)
                if (place := _place_in(dump.decode(errors="replace"))) is not None:
                    return place
        finally:
            os.close(file)
    return None


def _catches(pid: int) -> bool:
    """Return whether a process handles the signal, which would otherwise end it."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (_SIGNAL - 1) & 1)
    return False


def _opened(pid: int) -> int | None:
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        with contextlib.suppress(OSError):
            if f"memfd:{_NAME}" in os.readlink(path):
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _place_in(dump: str) -> str | None:
    """Return the innermost line of the program in the first stack that has one."""
    # The last line may be incomplete.
    for line in dump.split("\n")[:-1]:
        frame = _FRAME.fullmatch(line)
        if frame is None:
            continue
        path, number, function = frame.groups()
        if not path.startswith(_STANDARD) and not any(part in path for part in _LIBRARIES):
            return f"{function} at {path}:{number}"
    return None
