"""A query process's end of the connection to the telemetry process of its host."""

from __future__ import annotations

import pickle
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING

from mesh_telemetry._query_process.frames import (
    HOSTS_CANCEL,
    HOSTS_END,
    HOSTS_REQUEST,
    Frame,
    packed,
    read_frame,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from mesh_telemetry._query.fragment import Fragment, QueriedHost, ShardAnswer

__all__ = ["DEADLINE", "FragmentAnswers", "Link"]

#: Precedes a fragment that is sent to all hosts: the time that they may take, in seconds.
DEADLINE = struct.Struct("<d")
_REQUESTS = 0


class Link:
    """The connection, on which several threads can wait for the frames of different requests.

    Args:
        connection: A blocking socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._turn = threading.Condition()
        self._is_reading = False
        self._is_closed = False
        self._came: dict[int, deque[Frame]] = {_REQUESTS: deque()}
        self._count = _REQUESTS

    def next_request(self) -> Frame | None:
        """Wait for the next request; return None when the connection is closed."""
        return self._next(_REQUESTS)

    def send(self, frame: bytes) -> None:
        """Send a frame; thread-safe."""
        with self._turn:
            if not self._is_closed:
                self._connection.sendall(frame)

    def run_on_hosts(self, fragment: Fragment) -> FragmentAnswers:
        """Request that all hosts run a fragment."""
        with self._turn:
            self._count += 1
            number = self._count
            self._came[number] = deque()
        body = DEADLINE.pack(fragment.deadline_s) + pickle.dumps(fragment)
        self.send(packed(HOSTS_REQUEST, body, number))
        return FragmentAnswers(self, number)

    def next_answer(self, number: int) -> Frame | None:
        """Wait for the next frame of a request to hosts; return None after the last one."""
        return self._next(number)

    def forget(self, number: int) -> None:
        """Drop the received and future frames of a request to hosts."""
        with self._turn:
            if self._came.pop(number, None) is not None:
                self._turn.notify_all()
        self.send(packed(HOSTS_CANCEL, b"", number))

    def _next(self, number: int) -> Frame | None:
        while True:
            with self._turn:
                while True:
                    came = self._came.get(number)
                    if came is None or (self._is_closed and not came):
                        return None
                    if came:
                        return came.popleft()
                    if not self._is_reading:
                        self._is_reading = True
                        break
                    self._turn.wait()
            self._read()

    def _read(self) -> None:
        """Read one frame, and pass it to the thread that waits for it."""
        frame = None
        try:
            frame = read_frame(self._connection)
        except (EOFError, OSError):
            pass
        finally:
            with self._turn:
                self._is_reading = False
                if frame is None:
                    self._is_closed = True
                elif frame.number in self._came:
                    self._came[frame.number].append(frame)
                self._turn.notify_all()


class FragmentAnswers:
    """A fragment that all hosts run; iterate over it for their answers."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number

    def __iter__(self) -> Iterator[QueriedHost | ShardAnswer]:
        while True:
            frame = self._link.next_answer(self._number)
            if frame is None or frame.kind == HOSTS_END:
                return
            yield pickle.loads(frame.body)

    def close(self) -> None:
        """Cancel outstanding answers; hosts stop computing them."""
        self._link.forget(self._number)
