"""Connection of rails: the reading and writing side creates queue pairs, the owner responds."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mesh_rdma._errors import RDMATransportError
from mesh_rdma._verbs.binding import SUCCESS, Device, Opcode, QueuePair, QueuePairEnd, WorkRequest
from mesh_rdma._verbs.messages import (
    CHANNEL_ID_LEN,
    ChannelCommand,
    ChannelReply,
    ChannelRequest,
    RailEndpoint,
    WireError,
)
from mesh_rdma._verbs.ports import Port
from mesh_rdma._verbs.work_queue import FinishedPiece, WorkQueue

#: The maximum number of work requests in flight per rail.
DEPTH = 256

#: The maximum number of reads and atomics of one queue pair in flight.
READS_MAX = 16

#: The number of the rail for atomics. There is a single such rail, which always uses the same port
#: of the owner, because operations on a word are atomic only with respect to the same adapter.
ATOMICS = 255

Exchange = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Adapters:
    """The ports of a transport, and their devices."""

    ports: Sequence[Port]

    @property
    def devices(self) -> list[Device]:
        """The distinct devices; descriptors contain their keys in this order."""
        return list(dict.fromkeys(port.device for port in self.ports))

    def device_index(self, port: Port) -> int:
        """Return the index of the device of a port."""
        return self.devices.index(port.device)


@dataclass(eq=False)
class Rail:
    """A connected queue pair with its number, and the indices of the devices at both ends."""

    number: int
    queue: WorkQueue[Any]
    device: int
    remote_device: int
    message_max: int
    #: The number of bytes in flight.
    load: int = 0
    #: The first piece that failed on the rail.
    cause: FinishedPiece[Any] | None = None
    #: The error for the transfers of that piece.
    error: Exception | None = None


class Connector:
    """Creates and reconnects the rails of one channel."""

    def __init__(self, adapters: Adapters, exchange: Exchange) -> None:
        self._adapters = adapters
        self._exchange = exchange
        self._channel = secrets.token_bytes(CHANNEL_ID_LEN)

    def connect(self, numbers: Iterable[int]) -> list[Rail]:
        """Connect rails with these numbers; the owner replaces previous rails of the same numbers.

        Raises:
            RDMATransportError: The owner has no port for any of them.
            Exception: The exchange failed.
        """
        pairs = {number: self._pair(self._port(number)) for number in numbers}
        try:
            own = {number: self._end(number, pair) for number, pair in pairs.items()}
            request = ChannelRequest(ChannelCommand.CONNECT, self._channel, list(own.values()))
            reply = ChannelReply.unpack(self._exchange(request.pack()))
            return self._connect_pairs(pairs, own, reply)
        finally:
            for pair in pairs.values():
                pair.close()

    def close_channel(self) -> None:
        """Notify the owner that the channel was closed."""
        self._exchange(ChannelRequest(ChannelCommand.CLOSE, self._channel).pack())

    def _connect_pairs(
        self, pairs: dict[int, QueuePair], own: dict[int, RailEndpoint], reply: ChannelReply
    ) -> list[Rail]:
        """Connect the queue pairs that the owner has accepted, and remove them from `pairs`."""
        rails: list[Rail] = []
        reasons = ["the other end has no port on the same network"]
        for theirs in reply.rails:
            if theirs.rail not in pairs:
                raise WireError(f"the reply contains rail {theirs.rail}, which was not requested")
            port = self._port(theirs.rail)
            ours = own[theirs.rail]
            try:
                pairs[theirs.rail].connect(port.number, port.gid.index, ours.end, theirs.end)
            except OSError as error:
                reasons.append(f"{port.name}: {error}")
                continue
            queue: WorkQueue[Any] = WorkQueue(pairs.pop(theirs.rail), _depth(port.device))
            message_max = port.state.message_max
            rails.append(Rail(theirs.rail, queue, ours.device, theirs.device, message_max))
        if not rails:
            raise RDMATransportError(f"verbs: nothing can be connected: {'; '.join(reasons)}")
        return rails

    def _port(self, number: int) -> Port:
        return self._adapters.ports[0 if number == ATOMICS else number]

    def _pair(self, port: Port) -> QueuePair:
        return port.device.queue_pair(_depth(port.device))

    def _end(self, number: int, pair: QueuePair) -> RailEndpoint:
        port = self._port(number)
        return rail_endpoint(number, self._adapters.device_index(port), port, pair)


class Responder:
    """Responds to requests, and keeps the owner's ends of rails, which need no further work."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._lock = threading.Lock()
        self._channels: dict[bytes, dict[int, tuple[Port, QueuePair]]] = {}

    def handle(self, packed: bytes) -> bytes:
        """Respond to a request.

        Raises:
            WireError: The request is malformed.
            OSError: A queue pair cannot be created.
        """
        request = ChannelRequest.unpack(packed)
        with self._lock:
            if request.command == ChannelCommand.CLOSE:
                self._close_channel(request.channel)
                return ChannelReply([]).pack()
            if request.channel not in self._channels:
                self._sweep()
            rails = self._channels.setdefault(request.channel, {})
            ends = [self._accept(rails, theirs) for theirs in request.rails]
            return ChannelReply([end for end in ends if end]).pack()

    def close(self) -> None:
        """Close all rails."""
        with self._lock:
            for channel in list(self._channels):
                self._close_channel(channel)

    def _sweep(self) -> None:
        """Close channels whose peer has died, and probe the others.

        The probe is a zero-length write: the adapter of the peer acknowledges it as long as the
        process of the peer is alive.
        """
        for channel, rails in list(self._channels.items()):
            replies = [reply for _, pair in rails.values() for reply in pair.poll(1)]
            if any(reply.status != SUCCESS for reply in replies):
                self._close_channel(channel)
                continue
            for port_and_pair in rails.values():
                with suppress(OSError):
                    port_and_pair[1].post([WorkRequest(0, Opcode.WRITE, 0, 0, 0, 0, 0)])

    def _close_channel(self, channel: bytes) -> None:
        for _, pair in self._channels.pop(channel, {}).values():
            pair.close()

    def _accept(
        self, rails: dict[int, tuple[Port, QueuePair]], theirs: RailEndpoint
    ) -> RailEndpoint | None:
        """Connect this end of a rail, and replace the previous end of the same number."""
        port = None
        if theirs.rail in rails:
            port, earlier = rails.pop(theirs.rail)
            earlier.close()
        taken = {one.name for number, (one, _) in rails.items() if number != ATOMICS}
        port = port or self._free_port(theirs, taken)
        if port is None:
            return None
        pair = port.device.queue_pair(1)
        own = rail_endpoint(theirs.rail, self._adapters.device_index(port), port, pair)
        try:
            pair.connect(port.number, port.gid.index, own.end, theirs.end)
        except OSError:
            # The peer may have other ports that this side can reach.
            pair.close()
            return None
        rails[theirs.rail] = (port, pair)
        return own

    def _free_port(self, theirs: RailEndpoint, taken: set[str]) -> Port | None:
        ports = self._adapters.ports
        free = [port for port in ports if port.name not in taken]
        for port in ports[:1] if theirs.rail == ATOMICS else free:
            if port.may_reach(theirs.is_ethernet, theirs.end.gid):
                return port
        return None


def rail_endpoint(number: int, device: int, port: Port, pair: QueuePair) -> RailEndpoint:
    """Return the attributes of a queue pair that the peer needs."""
    end = QueuePairEnd(
        gid=port.gid.address,
        lid=port.state.lid,
        mtu=port.state.mtu,
        number=pair.number,
        first_packet=secrets.randbits(24),
        reads_max=min(READS_MAX, port.device.limits.reads_max),
    )
    return RailEndpoint(number, device, port.is_ethernet, end)


def _depth(device: Device) -> int:
    return min(DEPTH, device.limits.queue_len_max)
