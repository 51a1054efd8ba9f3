"""One forked worker behind asyncio streams: the floor of a call from an event loop."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from typing import Any

from bench.drivers.driver import Driver

_LENGTH = struct.Struct("<I")


async def _send(writer: asyncio.StreamWriter, message: Any) -> None:
    body = pickle.dumps(message, 5)
    writer.write(_LENGTH.pack(len(body)) + body)
    await writer.drain()


async def _recv(reader: asyncio.StreamReader) -> Any:
    size = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
    return pickle.loads(await reader.readexactly(size))


async def _serve(sock: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=sock)
    while True:
        _command, x = await _recv(reader)
        await _send(writer, x)


class StreamsDriver(Driver):
    """Both ends run an event loop; the worker is a fork."""

    name = "floor_streams"

    def start(self, workers: int, kind: str = "async") -> None:
        self._mine, theirs = socket.socketpair()
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._pid = os.fork()
        if self._pid == 0:
            self._mine.close()
            try:
                asyncio.run(_serve(theirs))
            except asyncio.IncompleteReadError:
                os._exit(0)
            finally:
                os._exit(1)
        theirs.close()

    def stop(self) -> None:
        # The event loop of the connection is already closed, so its socket must be closed here.
        self._mine.close()
        os.waitpid(self._pid, 0)

    def pids(self) -> list[int]:
        return [self._pid]

    async def call_async(self, x: int) -> int:
        if self._ends is None:
            self._ends = await asyncio.open_connection(sock=self._mine)
        reader, writer = self._ends
        await _send(writer, ("noop", x))
        answer: int = await _recv(reader)
        return answer


def driver() -> Driver:
    """Return the driver of this floor."""
    return StreamsDriver()
