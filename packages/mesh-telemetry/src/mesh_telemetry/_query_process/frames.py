"""Frames between the telemetry process of a host and its query processes."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

__all__ = [
    "FAILURE",
    "FORK",
    "FRAGMENT",
    "HEAD",
    "HOSTS_CANCEL",
    "HOSTS_END",
    "HOSTS_REPLY",
    "HOSTS_REQUEST",
    "QUERY",
    "RESULT",
    "Frame",
    "packed",
    "read_frame",
]

#: Requests to a query process: run a fragment, run a query; and the replies of hosts to it.
FRAGMENT, QUERY, HOSTS_REPLY, HOSTS_END = range(4)
#: Replies of a query process: the result, an error, and requests to send a fragment to all hosts.
RESULT, FAILURE, HOSTS_REQUEST, HOSTS_CANCEL = range(16, 20)

#: Request to the template process, with two descriptors for the child: its connection and stderr.
FORK = b"fork"
#: Kind, number of the request to hosts that the frame belongs to, and length of the body.
HEAD = struct.Struct("<BIQ")


class Frame(NamedTuple):
    """One message: its kind, the request to hosts that it belongs to, and its body."""

    kind: int
    number: int
    body: bytes


def packed(kind: int, body: bytes, number: int = 0) -> bytes:
    """Return a frame in the form in which it is sent."""
    return HEAD.pack(kind, number, len(body)) + body


def read_frame(connection: socket.socket) -> Frame:
    """Read the next frame from a blocking socket.

    Raises:
        EOFError: The peer has closed the connection.
    """
    kind, number, length = HEAD.unpack(_read_exactly(connection, HEAD.size))
    return Frame(kind, number, _read_exactly(connection, length))


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    buffer = bytearray(length)
    view = memoryview(buffer)
    at = 0
    while at < length:
        count = connection.recv_into(view[at:])
        if not count:
            raise EOFError("the connection is closed")
        at += count
    return bytes(buffer)
