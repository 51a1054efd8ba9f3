"""Pickled messages over a blocking Unix socketpair: two system calls per side for a small call."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16


class PickledSocket:
    """Sends and receives one pickled object at a time.

    A small message is written by one `sendall`. It is read either in the obvious way (`recv_plain`:
    the length, then the body), or by a single `recv` if it is small (`recv`: only valid if no
    second message can follow it).
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, message: Any) -> None:
        """Write one object."""
        body = pickle.dumps(message, 5)
        if len(body) < _CHUNK:
            self._sock.sendall(_LENGTH.pack(len(body)) + body)
            return
        self._sock.sendall(_LENGTH.pack(len(body)))
        self._sock.sendall(body)

    def recv(self) -> Any:
        """Read the only object in transit.

        Raises:
            EOFError: The other end is closed.
        """
        head = self._sock.recv(_CHUNK)
        if not head:
            raise EOFError
        size = _LENGTH.size + _LENGTH.unpack_from(head)[0]
        if len(head) == size:
            return pickle.loads(memoryview(head)[_LENGTH.size :])
        body = bytearray(size)
        body[: len(head)] = head
        self._fill(memoryview(body)[len(head) :])
        return pickle.loads(memoryview(body)[_LENGTH.size :])

    def recv_plain(self) -> Any:
        """Read one object, and leave the data after it in the socket.

        Raises:
            EOFError: The other end is closed.
        """
        head = self._sock.recv(_LENGTH.size)
        if not head:
            raise EOFError
        return pickle.loads(self._sock.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL))

    def close(self) -> None:
        """Close this end; the other end reads EOF."""
        self._sock.close()

    def _fill(self, rest: memoryview) -> None:
        while rest:
            n = self._sock.recv_into(rest)
            if n == 0:
                raise EOFError
            rest = rest[n:]
