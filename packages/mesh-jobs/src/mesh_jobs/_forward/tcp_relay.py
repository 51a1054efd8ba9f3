"""One end of a forwarded connection: a socket here, and the other end behind a channel.

Both ends say the same three things: bytes that their socket has read, how many pieces the other
side's socket has taken, and that no more will come. A side sends only so many pieces ahead, so a
slow reader slows its writer down across the mesh as it would on one wire.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from mesh_core import ChannelClosed, MeshError

if TYPE_CHECKING:
    from mesh_core import Port, PortReceiver

__all__ = ["Frame", "TcpCarrier", "break_off"]

# Bytes; or how many pieces were taken; or, None, the end.
Frame: TypeAlias = "bytes | int | None"

_PIECE_LEN_MAX = 48 * 1024
# Pieces under way in one direction of one connection.
_AHEAD_MAX = 16


class TcpCarrier:
    """Carries between a socket and a channel until both directions have ended."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: Port[Frame],
        news: PortReceiver[Frame],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._there = there
        self._news = news
        self._credit = asyncio.Semaphore(_AHEAD_MAX)
        self._is_ended_here = False
        self._is_ended_there = False

    async def carry(self) -> None:
        """Returns when the connection is over; a broken one is broken on the other side too."""
        try:
            async with asyncio.TaskGroup() as both_ways:
                both_ways.create_task(self._send())
                both_ways.create_task(self._receive())
        except* OSError:
            break_off(self._writer)
            with suppress(MeshError):
                self._there.exception(BrokenPipeError("the connection was broken"))
        except* MeshError:
            break_off(self._writer)
        finally:
            self._news.close()
            self._writer.close()

    async def _send(self) -> None:
        while piece := await self._reader.read(_PIECE_LEN_MAX):
            await self._credit.acquire()
            self._there.send(piece)
        self._there.send(None)
        self._is_ended_here = True
        if self._is_ended_there:
            self._news.close()

    async def _receive(self) -> None:
        while True:
            try:
                frame = await self._news.recv()
            except ChannelClosed:
                return
            if isinstance(frame, bytes):
                self._writer.write(frame)
                await self._writer.drain()
                self._there.send(1)
            elif frame is None:
                self._is_ended_there = True
                with suppress(OSError):
                    self._writer.write_eof()
                if self._is_ended_here:
                    return
            else:
                self._credit.release()


def break_off(writer: asyncio.StreamWriter) -> None:
    """Ends a connection so that the other side knows it for broken, and not for complete."""
    at_once = struct.pack("ii", 1, 0)
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    writer.transport.abort()
