"""A plain TCP stream over loopback: the floor of bytes that pass through a socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_CHUNK = 1 << 20


class SocketFloor:
    """A process that replies to `nbytes` with as many bytes."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def read_into(self, destination: memoryview) -> None:
        """Request as many bytes as fit into the destination, and receive them there."""
        self._stream.sendall(len(destination).to_bytes(8, "little"))
        received = 0
        while received < len(destination):
            count = self._stream.recv_into(destination[received : received + _CHUNK])
            if not count:
                raise EOFError("the process at the other end of the stream has ended")
            received += count


@contextmanager
def socket_floor(nbytes_max: int) -> Iterator[SocketFloor]:
    """Run the process for the duration of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pid = os.fork()
        if pid == 0:
            try:
                _serve(listener, nbytes_max)
            finally:
                os._exit(0)
        with socket.create_connection(listener.getsockname()) as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield SocketFloor(stream)
    os.waitpid(pid, 0)


def _serve(listener: socket.socket, nbytes_max: int) -> None:
    memory = memoryview(bytearray(nbytes_max))
    memory[::4096] = b"m" * len(memory[::4096])
    stream, _ = listener.accept()
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while wanted := stream.recv(8):
        rest = memory[: int.from_bytes(wanted, "little")]
        while rest:
            stream.sendall(rest[:_CHUNK])
            rest = rest[_CHUNK:]
