"""Another process with memory, for tests of the verbs transport, and its local counterpart."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from mesh_rdma import RDMAPeerDied
from mesh_rdma._verbs.transport import VerbsTransport
from mesh_rdma.spi import Channel, Kind, Region, Registration, Request

#: Longer than any operation of these tests takes on a loaded machine.
LIMIT_S = 60


class Memory:
    """A range of memory of this process."""

    def __init__(self, nbytes: int) -> None:
        self.content = mmap.mmap(-1, nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.content))

    def region(self, offset: int = 0, nbytes: int | None = None) -> Region:
        """Return a part of the memory, or all of it."""
        return Region(self.address + offset, nbytes or len(self.content) - offset, True)

    def empty(self, offset: int) -> Region:
        """Return an empty range."""
        return Region(self.address + offset, 0, True)


class Steps:
    """The steps that the other process executes on request, one per method."""

    def __init__(self, transport: VerbsTransport, nbytes: int) -> None:
        self.transport = transport
        self.memory = Memory(nbytes)
        self.registered: dict[bytes, Registration] = {}

    def renew(self) -> None:
        for registration in self.registered.values():
            registration.release()
        self.registered.clear()
        self.memory.content[:] = bytes(len(self.memory.content))

    def register(self, is_writable: bool) -> bytes:
        memory = self.memory.region()
        registration = self.transport.register(Region(memory.address, memory.nbytes, is_writable))
        self.registered[registration.descriptor] = registration
        return registration.descriptor

    def release(self, descriptor: bytes) -> None:
        self.registered.pop(descriptor).release()

    def accept(self, request: bytes) -> bytes:
        return self.transport.accept(request)

    def get(self, offset: int, nbytes: int) -> bytes:
        return self.memory.content[offset : offset + nbytes]

    def put(self, offset: int, content: bytes) -> None:
        self.memory.content[offset : offset + len(content)] = content


class Peer:
    """The other process."""

    def __init__(self, transport: VerbsTransport, nbytes: int) -> None:
        self._line, theirs = Pipe()
        self._asking = threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            self._line.close()
            with suppress(BaseException):
                _serve(theirs, Steps(transport, nbytes))
            os._exit(0)
        theirs.close()

    def do(self, step: str, *arguments: Any) -> Any:
        """Make the process execute a step of `Steps`; return its result or raise its error."""
        try:
            with self._asking:
                self._line.send((step, arguments))
                is_well, result = self._line.recv()
        except (EOFError, OSError) as error:
            raise RDMAPeerDied("the other process is gone") from error
        if not is_well:
            raise result
        return result

    def exchange(self, request: bytes) -> bytes:
        """Make the transport of the process handle a request."""
        answer: bytes = self.do("accept", request)
        return answer

    def kill(self) -> None:
        """Kill the process immediately."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
            self._line.close()


def _serve(line: Connection, steps: Steps) -> None:
    while True:
        step, arguments = line.recv()
        try:
            line.send((True, getattr(steps, step)(*arguments)))
        except Exception as error:
            line.send((False, error))


class Link:
    """A channel to another process, and memory at both of its ends."""

    def __init__(self, peer: Peer, transport: VerbsTransport, nbytes: int) -> None:
        self.peer = peer
        self.transport = transport
        self.memory = Memory(nbytes)
        self.registration = transport.register(self.memory.region())
        self.channel: Channel = transport.connect(peer.exchange)
        self.descriptor: bytes = peer.do("register", True)

    def request(
        self, kind: Kind, here: Region, there: int = 0, operand: int = 0, compare: int = 0
    ) -> Request:
        """Return a request without posting it."""
        return Request(kind, here, self.descriptor, there, operand, compare)

    def post(self, kind: Kind, here: Region, there: int = 0, **more: int) -> Request:
        """Post a request."""
        request = self.request(kind, here, there, **more)
        self.channel.post(request)
        return request

    def finish(self, count: int = 1) -> dict[Request, Exception | None]:
        """Wait until `count` requests have ended."""
        ended: dict[Request, Exception | None] = {}
        give_up = time.monotonic() + LIMIT_S
        while len(ended) < count:
            assert time.monotonic() < give_up, f"{len(ended)} of {count} requests have ended"
            for request, error in self.channel.poll(0.1):
                assert request not in ended
                ended[request] = error
        return ended

    def do(self, kind: Kind, here: Region, there: int = 0, **more: int) -> None:
        """Execute a request, and raise its error."""
        request = self.post(kind, here, there, **more)
        if error := self.finish()[request]:
            raise error


@contextmanager
def linked(transport: VerbsTransport, nbytes: int) -> Iterator[Link]:
    """Start another process with a separate transport, and connect a link to it."""
    peer = Peer(transport, nbytes)
    try:
        link = Link(peer, transport, nbytes)
        yield link
        link.channel.close()
        link.registration.release()
    finally:
        peer.kill()
