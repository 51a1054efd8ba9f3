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

    from mesh_telemetry._query.fragment import Fragment, FragmentReply, QueriedHost

__all__ = ["DEADLINE", "FragmentReplies", "FrameConnection"]

#: Precedes a fragment that is sent to all hosts: the time that they may take, in seconds.
DEADLINE = struct.Struct("<d")
_REQUESTS = 0


class FrameConnection:
    """The connection, on which several threads can wait for the frames of different requests.

    Args:
        connection: A blocking socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._changed = threading.Condition()
        self._is_reading = False
        self._is_closed = False
        self._received: dict[int, deque[Frame]] = {_REQUESTS: deque()}
        self._count = _REQUESTS

    def next_request(self) -> Frame | None:
        """Wait for the next request; return None when the connection is closed."""
        return self._next(_REQUESTS)

    def send(self, frame: bytes) -> None:
        """Send a frame; thread-safe."""
        with self._changed:
            if not self._is_closed:
                self._connection.sendall(frame)

    def run_on_hosts(self, fragment: Fragment) -> FragmentReplies:
        """Request that all hosts run a fragment."""
        with self._changed:
            self._count += 1
            number = self._count
            self._received[number] = deque()
        body = DEADLINE.pack(fragment.deadline_s) + pickle.dumps(fragment)
        self.send(packed(HOSTS_REQUEST, body, number))
        return FragmentReplies(self, number)

    def next_reply(self, number: int) -> Frame | None:
        """Wait for the next frame of a request to hosts; return None after the last one."""
        return self._next(number)

    def cancel(self, number: int) -> None:
        """Drop the received and future frames of a request to hosts."""
        with self._changed:
            if self._received.pop(number, None) is not None:
                self._changed.notify_all()
        self.send(packed(HOSTS_CANCEL, b"", number))

    def _next(self, number: int) -> Frame | None:
        while True:
            with self._changed:
                while True:
                    frames = self._received.get(number)
                    if frames is None or (self._is_closed and not frames):
                        return None
                    if frames:
                        return frames.popleft()
                    if not self._is_reading:
                        self._is_reading = True
                        break
                    self._changed.wait()
            self._read()

    def _read(self) -> None:
        """Read one frame, and pass it to the thread that waits for it."""
        frame = None
        try:
            frame = read_frame(self._connection)
        except (EOFError, OSError):
            pass
        finally:
            with self._changed:
                self._is_reading = False
                if frame is None:
                    self._is_closed = True
                elif frame.number in self._received:
                    self._received[frame.number].append(frame)
                self._changed.notify_all()


class FragmentReplies:
    """A fragment that all hosts run; iterate over it for their replies."""

    def __init__(self, connection: FrameConnection, number: int) -> None:
        self._connection = connection
        self._number = number

    def __iter__(self) -> Iterator[QueriedHost | FragmentReply]:
        while True:
            frame = self._connection.next_reply(self._number)
            if frame is None or frame.kind == HOSTS_END:
                return
            yield pickle.loads(frame.body)

    def close(self) -> None:
        """Cancel outstanding replies; hosts stop computing them."""
        self._connection.cancel(self._number)
