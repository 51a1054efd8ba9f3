"""Standard streams of a process whose stdout and stderr share one pipe.

A single pipe preserves the order of writes across the two streams but not the stream of each byte.
`sys.stderr` therefore marks its output: `STDERR_TAG` before each line, and `STDOUT_TAG` after a
piece that does not end a line. Neither byte occurs in UTF-8 text. Bytes without a tag, such as
those written by C code, count as stdout.

Before its own program runs, a process writes its pid in a line that starts with `PID_TAG`. The
controller therefore knows which process to kill even if every process between the two is killed at
that moment.
"""

import contextlib
import ctypes
import io
import os
import sys

STDERR_TAG = b"\xff"
STDOUT_TAG = b"\xfe"
PID_TAG = b"\xfd"

# Linux writes a piece of at most this size to a pipe atomically, even with concurrent writers.
_ATOMIC_LEN_MAX = 4096
_PIECE_LEN_MAX = _ATOMIC_LEN_MAX - 2
_LINE_BUFFERED = 1  # `_IOLBF` of C's stdio, the same in glibc, musl and uclibc


def install() -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams for a shared pipe.

    Both write each line as soon as it ends. C's own stdout is set to the same mode. Otherwise
    output of a C library to a pipe would appear minutes late or, after a crash, never.
    """
    _flush_quietly()
    sys.stdout = _text(io.FileIO(1, "wb", closefd=False))
    sys.stderr = _text(_TaggedFile(2, "wb", closefd=False))
    sys.__dict__.update(__stdout__=sys.stdout, __stderr__=sys.stderr)
    libc = ctypes.CDLL(None)
    # A C library without these names uses its own buffering, which only delays lines.
    with contextlib.suppress(AttributeError, ValueError):
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, 0)


def flush() -> None:
    """Flush the standard streams of Python and C."""
    _flush_quietly()
    ctypes.CDLL(None).fflush(None)


def write_stderr(text: str) -> None:
    """Write a line to descriptor 2 as stderr, whatever the state of `sys.stderr`.

    Raises:
        OSError: The descriptor is closed or has no reader.
    """
    for piece in tagged(text.encode("utf-8", "replace") + b"\n"):
        _write_all(2, piece)


def write_pid() -> None:
    """Write the pid of this process to the pipe."""
    _write_all(1, PID_TAG + str(os.getpid()).encode() + b"\n")


def tagged(written: bytes) -> list[bytes]:
    """Return `written` as self-contained pieces to write one at a time."""
    pieces: list[bytes] = []
    for line in _lines(written):
        for start in range(0, len(line), _PIECE_LEN_MAX):
            piece = STDERR_TAG + line[start : start + _PIECE_LEN_MAX]
            pieces.append(piece if piece.endswith(b"\n") else piece + STDOUT_TAG)
    return _joined(pieces)


def _lines(written: bytes) -> list[bytes]:
    """Return the lines of `written`, split at line feeds only."""
    lines = [line + b"\n" for line in written.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _joined(pieces: list[bytes]) -> list[bytes]:
    """Return the pieces, with neighbours merged as long as they fit in one atomic write."""
    joined: list[bytes] = []
    for piece in pieces:
        if joined and len(joined[-1]) + len(piece) <= _ATOMIC_LEN_MAX:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


class _TaggedFile(io.FileIO):
    """A file whose writes are tagged as stderr."""

    def write(self, written: object, /) -> int:
        content = bytes(written)  # type: ignore[call-overload]
        for piece in tagged(content):
            _write_all(self.fileno(), piece)
        return len(content)


def _text(raw: io.FileIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


def _flush_quietly() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The stream is None or closed, or its reader is gone: no data can be saved.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
