"""Messages with file descriptors between the controller, the supervisor and its templates.

All ends run the same interpreter, and each was started by another over an inherited socket pair. A
message is therefore a pickle: no other process can write to such a socket.
"""

import os
import pickle
import select
import socket
import struct
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence

FDS_PER_MESSAGE_MAX = 64

_DONT_WAIT = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_HEADER = struct.Struct("<II")
_RECEIVE_LEN = 1 << 18
_ANCILLARY_LEN = socket.CMSG_SPACE(4 * 253)  # The kernel passes at most 253 at a time.


class Link:
    """One end of a socket pair that carries whole messages.

    Sending never blocks: the link buffers data that the socket does not accept, and the owner calls
    `flush` when the socket is writable. The link owns the descriptors that are passed to `send`.
    Any thread may send; one thread receives.
    """

    def __init__(self, sock: socket.socket) -> None:
        # Forks share the flags of the socket, so each call specifies whether it may block.
        sock.setblocking(True)
        self._sock = sock
        self._lock = threading.Lock()
        self._unsent: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._received = bytearray()
        self._fds: deque[int] = deque()
        self.is_closed = False

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._sock.fileno()

    def send(self, message: object, fds: Sequence[int] = ()) -> bool:
        """Send a message and close `fds`; return whether some data is still pending.

        A message to an end that is gone is dropped. The receiving side of the link detects the
        loss.
        """
        assert len(fds) <= FDS_PER_MESSAGE_MAX
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        frame = memoryview(_HEADER.pack(len(body), len(fds)) + body)
        with self._lock:
            self._unsent.append((frame, tuple(fds)))
            return self._flush()

    def flush(self) -> bool:
        """Send pending data as far as the socket accepts it; return whether some is left."""
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        while self._unsent:
            frame, fds = self._unsent[0]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
            try:
                if self.is_closed:
                    raise BrokenPipeError
                sent = self._sock.sendmsg([frame], ancillary, _DONT_WAIT)
            except BlockingIOError:
                return True
            except OSError:
                sent = len(frame)  # The other end is gone.
            close_all(fds)
            if sent < len(frame):
                self._unsent[0] = (frame[sent:], ())
            else:
                self._unsent.popleft()
        return False

    def flush_blocking(self, limit_s: float | None = None) -> None:
        """Send all pending data, waiting without a limit or up to `limit_s` seconds."""
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while self.flush():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            poll.poll(None if left is None else left * 1000)

    def receive(self) -> list[tuple[object, list[int]]]:
        """Return the messages that have arrived, each with its descriptors.

        Raises:
            EOFError: The other end is gone, and everything it sent was returned before.
        """
        gone = False
        while True:
            try:
                content, ancillary, flags, _ = self._sock.recvmsg(
                    _RECEIVE_LEN, _ANCILLARY_LEN, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                break
            except OSError:
                content, ancillary, flags = b"", [], 0
            self._take_fds(ancillary, flags)
            if not content:
                gone = True
                break
            self._received += content
        messages = self._take_messages()
        if gone and not messages:
            raise EOFError
        return messages

    def receive_one(self) -> tuple[object, list[int]]:
        """Block until a message arrives and return it with its descriptors.

        Raises:
            EOFError: The other end is gone.
        """
        while True:
            message = self._take_message()
            if message is not None:
                return message
            content, ancillary, flags, _ = self._sock.recvmsg(
                _RECEIVE_LEN, _ANCILLARY_LEN, socket.MSG_CMSG_CLOEXEC
            )
            self._take_fds(ancillary, flags)
            if not content:
                raise EOFError
            self._received += content

    def _take_messages(self) -> list[tuple[object, list[int]]]:
        messages = []
        while (message := self._take_message()) is not None:
            messages.append(message)
        return messages

    def _take_message(self) -> tuple[object, list[int]] | None:
        if len(self._received) < _HEADER.size:
            return None
        body_len, fd_count = _HEADER.unpack_from(self._received)
        end = _HEADER.size + body_len
        if len(self._received) < end:
            return None
        body = bytes(memoryview(self._received)[_HEADER.size : end])
        del self._received[:end]
        return pickle.loads(body), [self._fds.popleft() for _ in range(fd_count)]

    def _take_fds(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            raise OSError("descriptors were lost in transit: raise the limit on open files")

    def close(self) -> None:
        """Close the socket and every descriptor that it still holds."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            for _, fds in self._unsent:
                close_all(fds)
            self._unsent.clear()
            close_all(self._fds)
            self._fds.clear()
            self._sock.close()


def message_pair() -> tuple[socket.socket, socket.socket]:
    """Create a socket pair that preserves message boundaries with any number of writers.

    Reads from the first end block; writes to the second end never do.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    return ours, theirs


def close_all(fds: Sequence[int] | deque[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
