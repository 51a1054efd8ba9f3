"""The two actors of a forwarded port: one listens, the other connects to the destination."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mesh_core import Actor, Channel, MeshError, concurrent_endpoint, current_rank, endpoint
from mesh_jobs._forward.tcp_relay import TcpRelay, abort_connection

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from mesh_core import Port, PortReceiver
    from mesh_jobs._forward.tcp_relay import Frame

__all__ = ["ForwardConnector", "ForwardListener", "HostPort", "show_address"]

# A host name or address, and a port.
HostPort = tuple[str, int]

_CONNECT_LIMIT_S = 30.0


class _Tasks:
    """The tasks of open connections, which are cancelled when their actor stops."""

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


class ForwardConnector(Actor):
    """Actor that opens connections to a port."""

    def __init__(self) -> None:
        self._tasks = _Tasks()

    @concurrent_endpoint
    async def connect(self, host: str, port: int, peer: Port[Frame]) -> Port[Frame]:
        """Open a connection and relay it to a peer; return the port for the peer's frames.

        Raises:
            OSError: The destination cannot be reached.
        """
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            reader, writer = await asyncio.open_connection(host, port)
        local_port, frames = open_channel()
        self._tasks.start(TcpRelay(reader, writer, peer, frames).run())
        return local_port

    async def __cleanup__(self, error: Exception | None) -> None:
        await self._tasks.end()


class ForwardListener(Actor):
    """Actor that listens, and has the connector open a connection for each one that it accepts."""

    def __init__(
        self, connectors: ForwardConnector, ports: Sequence[HostPort], addresses: Sequence[HostPort]
    ) -> None:
        rank = current_rank().rank
        self._connector = connectors if len(ports) == 1 else connectors[rank]
        self._port = ports[rank]
        self._address = addresses[rank]
        self._tasks = _Tasks()
        self._server: asyncio.Server | None = None

    @endpoint
    async def listen(self) -> str:
        """Start listening and return the address.

        Raises:
            OSError: The address cannot be used.
        """
        self._server = await asyncio.start_server(self._accept, *self._address)
        bound = self._server.sockets[0].getsockname()
        return show_address(bound[0], bound[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local_port, frames = open_channel()
        try:
            peer = await self._connector.connect.call_one(*self._port, local_port)
        except MeshError as error:
            # The protocol cannot pass the reason to the client, so the connection is reset.
            abort_connection(writer)
            reason = str(error).partition("\n")[0]
            self.logger.warning("a forwarded connection failed: %s", reason)
            return
        await TcpRelay(reader, writer, peer, frames).run()

    async def __cleanup__(self, error: Exception | None) -> None:
        if self._server is not None:
            self._server.close()
        await self._tasks.end()


def open_channel() -> tuple[Port[Frame], PortReceiver[Frame]]:
    """Open the channel of one end of a connection."""
    return Channel.open()


def show_address(host: str, port: int) -> str:
    """Format an address as `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
