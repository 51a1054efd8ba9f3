"""A tee for the output of this process and its children, which reads each line and prints it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["STDERR", "STDOUT", "tee_output"]

STDOUT = 1
STDERR = 2

_CHUNK_LEN = 1 << 16
_LINE_LEN_MAX = 1 << 16
_DRAIN_LIMIT_S = 5.0


@contextmanager
def tee_output(on_line: Callable[[str], str | None], descriptor: int = STDOUT) -> Iterator[None]:
    """Call a function for each line that is written to an output; the line is printed as well.

    The output of child processes that start inside the context is read as well.

    Args:
        on_line: A function that is called with each line, without its line feed. If it returns a
            string, that string is printed after the line.
        descriptor: `STDOUT` or `STDERR`.
    """
    _flush()
    original = os.dup(descriptor)
    reading, writing = os.pipe()
    os.dup2(writing, descriptor)
    os.close(writing)
    pump = threading.Thread(target=_pump, args=(reading, original, on_line), daemon=True)
    pump.start()
    try:
        yield
    finally:
        _flush()
        os.dup2(original, descriptor)
        # A child that outlives this process may hold the pipe open, so the wait has a limit.
        pump.join(_DRAIN_LIMIT_S)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _pump(reading: int, to: int, on_line: Callable[[str], str | None]) -> None:
    line = b""
    while chunk := os.read(reading, _CHUNK_LEN):
        *whole, rest = (line + chunk).split(b"\n")
        line = rest
        for one in whole:
            answer = on_line(one[:_LINE_LEN_MAX].decode(errors="replace"))
            _write(to, one + b"\n")
            if answer is not None:
                _write(to, answer.encode() + b"\n")
        if len(line) > _LINE_LEN_MAX:
            _write(to, line)
            line = b""
    _write(to, line)
    os.close(reading)


def _write(to: int, content: bytes) -> None:
    # The parent may have closed its end of the pipe; the worker continues.
    with suppress(OSError):
        while content:
            content = content[os.write(to, content) :]
