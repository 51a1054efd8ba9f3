"""Connection of lanes: the reading and writing side offers queue pairs, the owner responds."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mesh_rdma._errors import RDMATransportError
from mesh_rdma._verbs.binding import SUCCESS, Device, Opcode, QueuePair, QueuePairEnd, WorkRequest
from mesh_rdma._verbs.lane import FinishedPiece, Lane
from mesh_rdma._verbs.messages import CHANNEL_ID_LEN, Answer, LaneEnd, Offer, Purpose, WireError
from mesh_rdma._verbs.ports import Port

#: The maximum number of work requests in a lane.
DEPTH = 256

#: The maximum number of reads and atomics of one queue pair in flight.
READS_MAX = 16

#: The number of the lane for atomics. There is a single such lane, which always uses the same port
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

    def place(self, port: Port) -> int:
        """Return the index of the device of a port."""
        return self.devices.index(port.device)


@dataclass(eq=False)
class Route:
    """A lane with its number, and the indices of the devices at both ends."""

    number: int
    lane: Lane[Any]
    device: int
    remote_device: int
    message_max: int
    #: The number of bytes in flight.
    load: int = 0
    #: The first piece that failed in the lane.
    cause: FinishedPiece[Any] | None = None
    #: The error for the transfers of that piece.
    error: Exception | None = None


class Connector:
    """Creates and reconnects the lanes of one channel."""

    def __init__(self, adapters: Adapters, exchange: Exchange) -> None:
        self._adapters = adapters
        self._exchange = exchange
        self._channel = secrets.token_bytes(CHANNEL_ID_LEN)

    def connect(self, numbers: Iterable[int]) -> list[Route]:
        """Connect lanes with these numbers; the owner replaces previous lanes of the same numbers.

        Raises:
            RDMATransportError: The owner has no port for any of them.
            Exception: The exchange failed.
        """
        pairs = {number: self._pair(self._port(number)) for number in numbers}
        try:
            own = {number: self._end(number, pair) for number, pair in pairs.items()}
            offer = Offer(Purpose.CONNECT, self._channel, list(own.values()))
            answer = Answer.unpack(self._exchange(offer.pack()))
            return self._joined(pairs, own, answer)
        finally:
            for pair in pairs.values():
                pair.close()

    def leave(self) -> None:
        """Notify the owner that the channel was closed."""
        self._exchange(Offer(Purpose.LEAVE, self._channel).pack())

    def _joined(
        self, pairs: dict[int, QueuePair], own: dict[int, LaneEnd], answer: Answer
    ) -> list[Route]:
        """Connect the queue pairs that the owner has accepted, and remove them from `pairs`."""
        routes: list[Route] = []
        reasons = ["the other end has no port on the same network"]
        for theirs in answer.lanes:
            if theirs.lane not in pairs:
                raise WireError(f"the other end answers lane {theirs.lane}, which was not offered")
            port = self._port(theirs.lane)
            ours = own[theirs.lane]
            try:
                pairs[theirs.lane].connect(port.number, port.gid.index, ours.end, theirs.end)
            except OSError as error:
                reasons.append(f"{port.name}: {error}")
                continue
            lane: Lane[Any] = Lane(pairs.pop(theirs.lane), _depth(port.device))
            message_max = port.state.message_max
            routes.append(Route(theirs.lane, lane, ours.device, theirs.device, message_max))
        if not routes:
            raise RDMATransportError(f"verbs: nothing can be connected: {'; '.join(reasons)}")
        return routes

    def _port(self, number: int) -> Port:
        return self._adapters.ports[0 if number == ATOMICS else number]

    def _pair(self, port: Port) -> QueuePair:
        return port.device.queue_pair(_depth(port.device))

    def _end(self, number: int, pair: QueuePair) -> LaneEnd:
        port = self._port(number)
        return lane_end(number, self._adapters.place(port), port, pair)


class Responder:
    """Responds to offers, and keeps the owner's ends of lanes, which need no further work here."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._lock = threading.Lock()
        self._channels: dict[bytes, dict[int, tuple[Port, QueuePair]]] = {}

    def answer(self, packed: bytes) -> bytes:
        """Respond to an offer.

        Raises:
            WireError: The offer is malformed.
            OSError: A queue pair cannot be created.
        """
        offer = Offer.unpack(packed)
        with self._lock:
            if offer.purpose == Purpose.LEAVE:
                self._forget(offer.channel)
                return Answer([]).pack()
            if offer.channel not in self._channels:
                self._sweep()
            lanes = self._channels.setdefault(offer.channel, {})
            ends = [self._accept(lanes, theirs) for theirs in offer.lanes]
            return Answer([end for end in ends if end]).pack()

    def close(self) -> None:
        """Close all lanes."""
        with self._lock:
            for channel in list(self._channels):
                self._forget(channel)

    def _sweep(self) -> None:
        """Close channels whose peer has died, and probe the others.

        The probe is a zero-length write: the adapter of the peer acknowledges it as long as the
        process of the peer is alive.
        """
        for channel, lanes in list(self._channels.items()):
            answers = [answer for _, pair in lanes.values() for answer in pair.poll(1)]
            if any(answer.status != SUCCESS for answer in answers):
                self._forget(channel)
                continue
            for port_and_pair in lanes.values():
                with suppress(OSError):
                    port_and_pair[1].post([WorkRequest(0, Opcode.WRITE, 0, 0, 0, 0, 0)])

    def _forget(self, channel: bytes) -> None:
        for _, pair in self._channels.pop(channel, {}).values():
            pair.close()

    def _accept(self, lanes: dict[int, tuple[Port, QueuePair]], theirs: LaneEnd) -> LaneEnd | None:
        """Connect this end of a lane, and replace the previous end of the same number."""
        port = None
        if theirs.lane in lanes:
            port, earlier = lanes.pop(theirs.lane)
            earlier.close()
        taken = {one.name for number, (one, _) in lanes.items() if number != ATOMICS}
        port = port or self._free_port(theirs, taken)
        if port is None:
            return None
        pair = port.device.queue_pair(1)
        own = lane_end(theirs.lane, self._adapters.place(port), port, pair)
        try:
            pair.connect(port.number, port.gid.index, own.end, theirs.end)
        except OSError:
            # The peer may have other ports that this side can reach.
            pair.close()
            return None
        lanes[theirs.lane] = (port, pair)
        return own

    def _free_port(self, theirs: LaneEnd, taken: set[str]) -> Port | None:
        ports = self._adapters.ports
        free = [port for port in ports if port.name not in taken]
        for port in ports[:1] if theirs.lane == ATOMICS else free:
            if port.may_reach(theirs.is_ethernet, theirs.end.gid):
                return port
        return None


def lane_end(number: int, device: int, port: Port, pair: QueuePair) -> LaneEnd:
    """Return the attributes of a queue pair that the peer needs."""
    end = QueuePairEnd(
        gid=port.gid.address,
        lid=port.state.lid,
        mtu=port.state.mtu,
        number=pair.number,
        first_packet=secrets.randbits(24),
        reads_max=min(READS_MAX, port.device.limits.reads_max),
    )
    return LaneEnd(number, device, port.is_ethernet, end)


def _depth(device: Device) -> int:
    return min(DEPTH, device.limits.queue_len_max)
