"""Detects clients that disconnect before their request is served."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

__all__ = ["on_disconnect"]


@contextmanager
def on_disconnect(connection: socket.socket, callback: Callable[[], object]) -> Iterator[None]:
    """Call a function if the peer of a connection closes it within the block.

    It is called in a separate thread, at most once, and has returned when the block ends.

    Args:
        connection: The connection; nothing is read from it.
        callback: The function to call.
    """
    ours, theirs = socket.socketpair()
    watching = Thread(
        target=_watch,
        args=(connection, theirs, callback),
        name="mesh-telemetry-hang-up",
        daemon=True,
    )
    with theirs, ours:
        watching.start()
        try:
            yield
        finally:
            ours.close()
            watching.join()


def _watch(connection: socket.socket, block: socket.socket, callback: Callable[[], object]) -> None:
    poll = select.poll()
    # Incoming data is not polled for, because it may be the next request.
    poll.register(connection, select.POLLRDHUP)
    poll.register(block, select.POLLIN)
    is_over = any(number == block.fileno() for number, _ in poll.poll())
    if not is_over:
        callback()
