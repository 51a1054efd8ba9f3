"""Short-lived processes: owners and users of buffers, which tests kill.

A fork server is one initialized process without threads. Each of its children is forked from it
within a millisecond or two. The children run functions of a script: this one, or another one that
calls `main`.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mesh_rdma
from mesh_rdma import RDMABuffer

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ChildProcess", "ForkServer", "fill_byte", "main", "receive", "send"]

_LEN_SIZE = 4


@dataclass
class ChildProcess:
    """A child process of a fork server, and the channel to it."""

    pid: int
    channel: socket.socket

    def send(self, message: Any) -> None:
        """Send a message to the process."""
        send(self.channel, message)

    def receive(self) -> Any:
        """Wait for a message of the process."""
        return receive(self.channel)

    def kill(self) -> None:
        """Kill the process immediately."""
        os.kill(self.pid, signal.SIGKILL)

    def wait_for_end(self) -> None:
        """Wait until it is dead; the kernel closes its descriptors one at a time before that."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            select.select([handle], [], [])
            os.close(handle)
        self.channel.close()


class ForkServer:
    """Starts children that run functions of a script; all of them end with the fork server."""

    def __init__(self, script: str = __file__) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, script, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._channel.close()
        self._process.wait()

    def start(self, role: str, *arguments: Any) -> ChildProcess:
        """Start a child that calls a function of the script with its channel and the arguments."""
        ours, theirs = socket.socketpair()
        with theirs:
            send(self._channel, (role, arguments))
            socket.send_fds(self._channel, [b"d"], [theirs.fileno()])
        return ChildProcess(receive(self._channel), ours)


def send(channel: socket.socket, message: Any) -> None:
    """Send one message."""
    data = pickle.dumps(message)
    channel.sendall(len(data).to_bytes(_LEN_SIZE, "little") + data)


def receive(channel: socket.socket) -> Any:
    """Receive one message; raise EOFError if the other side has closed the channel."""
    return pickle.loads(_exactly(channel, int.from_bytes(_exactly(channel, _LEN_SIZE), "little")))


def fill_byte(number: int) -> int:
    """Return the byte with which the memory of an owner is filled."""
    return number % 250 + 1


def own(channel: socket.socket, number: int, is_arena: bool, nbytes: int) -> None:
    """Register memory until the other side closes the channel."""
    memory = mesh_rdma.allocate(nbytes) if is_arena else bytearray(nbytes)
    memory[:] = bytes([fill_byte(number)]) * nbytes
    send(channel, RDMABuffer(memory))
    channel.recv(1)


def own_read_only(channel: socket.socket, nbytes: int) -> None:
    """Register read-only memory until the other side closes the channel."""
    send(channel, RDMABuffer(mesh_rdma.allocate(nbytes).toreadonly()))
    channel.recv(1)


def use(channel: socket.socket, number: int, transport: str, verb: str, handle: bytes) -> None:
    """Copy repeatedly; send a message after the first copy."""
    # The handle is unpickled in the child, because the fork server must not hold the buffer.
    buffer: RDMABuffer = pickle.loads(handle)
    buffer = buffer.via(transport)
    here = array.array("B", bytes([fill_byte(number)]) * buffer.size())
    is_first = True
    while True:
        if verb == "read":
            buffer.read_into(here).get()
        elif verb == "write":
            buffer.write_from(here).get()
        else:
            buffer.fetch_add(0).get()
        if is_first:
            send(channel, "under way")
            is_first = False


def main(roles: dict[str, Any]) -> None:
    """Fork on request until the channel is closed; `roles` contains the functions by name."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    orders = socket.socket(fileno=int(sys.argv[1]))
    children: list[int] = []
    while True:
        try:
            role, arguments = receive(orders)
        except (EOFError, ConnectionError):
            break
        descriptor = socket.recv_fds(orders, 1, 1)[1][0]
        pid = os.fork()
        if pid == 0:
            orders.close()
            with socket.socket(fileno=descriptor) as channel:
                roles[role](channel, *arguments)
            os._exit(0)
        os.close(descriptor)
        children.append(pid)
        send(orders, pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = channel.recv(size - len(data))
        if not piece:
            raise EOFError("the other side is gone")
        data += piece
    return data


if __name__ == "__main__":
    main(globals())
