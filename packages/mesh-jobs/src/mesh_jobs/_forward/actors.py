"""The two actors of a forwarded port: where connections come in, and where they go out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mesh_core import Actor, Channel, MeshError, concurrent_endpoint, current_rank, endpoint
from mesh_jobs._forward.tcp_relay import TcpCarrier, break_off

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from mesh_core import Port, PortReceiver
    from mesh_jobs._forward.tcp_relay import Frame

__all__ = ["Entrance", "Exit", "HostPort", "show_address"]

# A host name or address, and a port.
HostPort = tuple[str, int]

_CONNECT_LIMIT_S = 30.0


class _Tasks:
    """Connections under way; they end with their actor."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def end(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Exit(Actor):
    """Connects to a port, as often as it is asked to."""

    def __init__(self) -> None:
        self._tasks = _Tasks()

    @concurrent_endpoint
    async def connect(self, host: str, port: int, there: Port[Frame]) -> Port[Frame]:
        """Opens a connection whose other end is behind a port; gives the port for this end.

        Raises:
            OSError: Nobody answers there.
        """
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            reader, writer = await asyncio.open_connection(host, port)
        here, news = open_channel()
        self._tasks.start(TcpCarrier(reader, writer, there, news).carry())
        return here

    async def __cleanup__(self, error: Exception | None) -> None:
        await self._tasks.end()


class Entrance(Actor):
    """Listens, and has a connection opened at the exit for each that comes in."""

    def __init__(
        self, exits: Exit, ports: Sequence[HostPort], addresses: Sequence[HostPort]
    ) -> None:
        rank = current_rank().rank
        self._exit = exits if len(ports) == 1 else exits[rank]
        self._port = ports[rank]
        self._address = addresses[rank]
        self._tasks = _Tasks()
        self._server: asyncio.Server | None = None

    @endpoint
    async def listen(self) -> str:
        """Begins to listen; gives the address.

        Raises:
            OSError: The address cannot be listened at.
        """
        self._server = await asyncio.start_server(self._accept, *self._address)
        bound = self._server.sockets[0].getsockname()
        return show_address(bound[0], bound[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here, news = open_channel()
        try:
            there = await self._exit.connect.call_one(*self._port, here)
        except MeshError as error:
            # The one who has connected can be told no more than that.
            break_off(writer)
            reason = str(error).partition("\n")[0]
            self.logger.warning("a forwarded connection cannot go on: %s", reason)
            return
        await TcpCarrier(reader, writer, there, news).carry()

    async def __cleanup__(self, error: Exception | None) -> None:
        if self._server is not None:
            self._server.close()
        await self._tasks.end()


def open_channel() -> tuple[Port[Frame], PortReceiver[Frame]]:
    """Opens the channel of one end of a connection."""
    return Channel.open()


def show_address(host: str, port: int) -> str:
    """Writes an address as `host:port`, an IPv6 one in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
