"""One end of a forwarded TCP connection, which relays between a local socket and a channel.

Both ends send the same three frames: bytes read from their socket, credit for the pieces that were
written to it, and end of stream. Each end sends at most a fixed number of pieces without credit, so
a slow reader applies backpressure to the writer across the mesh.
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

__all__ = ["Frame", "TcpRelay", "abort_connection"]

# Bytes; or credit for a number of pieces; or None for the end of the stream.
Frame: TypeAlias = "bytes | int | None"

_PIECE_LEN_MAX = 48 * 1024
# The maximum number of pieces in flight in one direction of one connection.
_AHEAD_MAX = 16


class TcpRelay:
    """Relay between a socket and a channel, which ends when both directions are closed."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Port[Frame],
        frames: PortReceiver[Frame],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self._frames = frames
        self._credit = asyncio.Semaphore(_AHEAD_MAX)
        self._is_local_closed = False
        self._is_peer_closed = False

    async def run(self) -> None:
        """Relay until the connection is closed; an error aborts it on both sides."""
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._send())
                directions.create_task(self._receive())
        except* OSError:
            abort_connection(self._writer)
            with suppress(MeshError):
                self._peer.exception(BrokenPipeError("the connection was broken"))
        except* MeshError:
            abort_connection(self._writer)
        finally:
            self._frames.close()
            self._writer.close()

    async def _send(self) -> None:
        while piece := await self._reader.read(_PIECE_LEN_MAX):
            await self._credit.acquire()
            self._peer.send(piece)
        self._peer.send(None)
        self._is_local_closed = True
        if self._is_peer_closed:
            self._frames.close()

    async def _receive(self) -> None:
        while True:
            try:
                frame = await self._frames.recv()
            except ChannelClosed:
                return
            if isinstance(frame, bytes):
                self._writer.write(frame)
                await self._writer.drain()
                self._peer.send(1)
            elif frame is None:
                self._is_peer_closed = True
                with suppress(OSError):
                    self._writer.write_eof()
                if self._is_local_closed:
                    return
            else:
                self._credit.release()


def abort_connection(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset, so that its peer does not consider it complete."""
    reset_on_close = struct.pack("ii", 1, 0)
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, reset_on_close
        )
    writer.transport.abort()
