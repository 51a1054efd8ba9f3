"""The local terminal: its raw mode, its size and its input."""

from __future__ import annotations

import os
import select
import signal
import termios
import threading
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["is_terminal", "on_resize", "raw", "typed", "window_size"]

_PIECE_LEN_MAX = 4096
_DEFAULT_SIZE = (24, 80)


def is_terminal(fd: int) -> bool:
    """Whether a descriptor is a terminal."""
    return os.isatty(fd)


def window_size(fd: int) -> tuple[int, int]:
    """Return the rows and columns of a terminal; 24 and 80 if it is not a terminal."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return _DEFAULT_SIZE
    return (rows, columns) if rows and columns else _DEFAULT_SIZE


@contextmanager
def raw(fd: int) -> Iterator[None]:
    """Set a terminal to raw mode inside the context, and restore its previous mode afterwards."""
    if not is_terminal(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        # The flush discards unread input, which was meant for the remote shell.
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)


@contextmanager
def on_resize(call: Callable[[], object]) -> Iterator[None]:
    """Call a function when the window is resized; has an effect only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGWINCH, lambda *_: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def typed(fd: int, stop: int) -> Iterator[bytes]:
    """Yield the input until its end, or until `stop` is readable."""
    while True:
        ready, _, _ = select.select([fd, stop], [], [])
        if stop in ready:
            return
        try:
            piece = os.read(fd, _PIECE_LEN_MAX)
        except OSError:
            return  # EIO: the terminal was closed, or now belongs to another process group.
        if not piece:
            return
        yield piece
