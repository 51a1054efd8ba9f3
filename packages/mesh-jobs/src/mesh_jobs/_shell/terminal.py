"""The terminal of this program: raw while a remote one stands behind it, and what is typed."""

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
    """Gives the rows and columns of a terminal; of one that is none, those of old."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return _DEFAULT_SIZE
    return (rows, columns) if rows and columns else _DEFAULT_SIZE


@contextmanager
def raw(fd: int) -> Iterator[None]:
    """Has a terminal hand on each key as it is; it is as before afterwards, whatever happens."""
    if not is_terminal(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        # What was typed for the other side is not for the shell of this one.
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)


@contextmanager
def on_resize(call: Callable[[], object]) -> Iterator[None]:
    """Calls back when the window changes its size; only the main thread can hear of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGWINCH, lambda *_: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def typed(fd: int, stop: int) -> Iterator[bytes]:
    """Gives what is typed until its end, or until there is something to read from `stop`."""
    while True:
        ready, _, _ = select.select([fd, stop], [], [])
        if stop in ready:
            return
        try:
            piece = os.read(fd, _PIECE_LEN_MAX)
        except OSError:
            return  # EIO: the terminal is gone, or belongs to another job now.
        if not piece:
            return
        yield piece
