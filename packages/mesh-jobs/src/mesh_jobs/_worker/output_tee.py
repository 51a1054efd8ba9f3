"""Reading what this process and its children print, while it goes where it always went."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["STDERR", "STDOUT", "overheard"]

STDOUT = 1
STDERR = 2

_CHUNK_LEN = 1 << 16
_LINE_LEN_MAX = 1 << 16
_LAST_WORDS_S = 5.0


@contextmanager
def overheard(heard: Callable[[str], str | None], descriptor: int = STDOUT) -> Iterator[None]:
    """Calls `heard` for each line of an output; prints what it gives after the line.

    Children that are started meanwhile are heard as well.

    Args:
        heard: What to call.
        descriptor: Which output, `STDOUT` or `STDERR`.
    """
    _flush()
    kept = os.dup(descriptor)
    reading, writing = os.pipe()
    os.dup2(writing, descriptor)
    os.close(writing)
    pump = threading.Thread(target=_pump, args=(reading, kept, heard), daemon=True)
    pump.start()
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, descriptor)
        # Its last writer was ours, unless a child lives on: that one is not waited for.
        pump.join(_LAST_WORDS_S)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _pump(reading: int, to: int, heard: Callable[[str], str | None]) -> None:
    line = b""
    while chunk := os.read(reading, _CHUNK_LEN):
        *whole, rest = (line + chunk).split(b"\n")
        line = rest
        for one in whole:
            answer = heard(one[:_LINE_LEN_MAX].decode(errors="replace"))
            _write(to, one + b"\n")
            if answer is not None:
                _write(to, answer.encode() + b"\n")
        if len(line) > _LINE_LEN_MAX:
            _write(to, line)
            line = b""
    _write(to, line)
    os.close(reading)


def _write(to: int, content: bytes) -> None:
    # Who has started the worker may have stopped listening: the worker goes on.
    with suppress(OSError):
        while content:
            content = content[os.write(to, content) :]
