"""Connects lanes: the side that reads and writes offers queue pairs, the other one answers."""

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

#: Work requests that one lane takes at a time.
DEPTH = 256

#: Reads and atomics that one queue pair has under way at a time.
READS_MAX = 16

#: The number of the lane for atomics. It is one for all, and always to the same port of the other
#: end: what one adapter does to a word is atomic only beside what the same adapter does to it.
ATOMICS = 255

Exchange = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Adapters:
    """What a transport sends through: ports, and the devices that they are on."""

    ports: Sequence[Port]

    @property
    def devices(self) -> list[Device]:
        """The devices, each once; descriptors have their keys in this order."""
        return list(dict.fromkeys(port.device for port in self.ports))

    def place(self, port: Port) -> int:
        """Returns the place of a port's device among them."""
        return self.devices.index(port.device)


@dataclass(eq=False)
class Route:
    """A lane with its number, and the places of the devices at its ends."""

    number: int
    lane: Lane[Any]
    device: int
    remote_device: int
    message_max: int
    #: Bytes under way.
    load: int = 0
    #: The first piece that failed on it.
    cause: FinishedPiece[Any] | None = None
    #: What that means to whom it concerns.
    error: Exception | None = None


class Connector:
    """Makes the lanes of one channel, and makes them anew."""

    def __init__(self, adapters: Adapters, exchange: Exchange) -> None:
        self._adapters = adapters
        self._exchange = exchange
        self._channel = secrets.token_bytes(CHANNEL_ID_LEN)

    def connect(self, numbers: Iterable[int]) -> list[Route]:
        """Connects lanes of these numbers; whatever the other end had of them is gone then.

        Raises:
            RDMATransportError: It has no port for any of them.
            Exception: The exchange has failed.
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
        """Tells the other end that the channel is no more."""
        self._exchange(Offer(Purpose.LEAVE, self._channel).pack())

    def _joined(
        self, pairs: dict[int, QueuePair], own: dict[int, LaneEnd], answer: Answer
    ) -> list[Route]:
        """Connects those queue pairs that were answered, and takes them out of `pairs`."""
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
    """Answers offers, and keeps this end of their lanes: nothing is done here for them."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._lock = threading.Lock()
        self._channels: dict[bytes, dict[int, tuple[Port, QueuePair]]] = {}

    def answer(self, packed: bytes) -> bytes:
        """Answers an offer.

        Raises:
            WireError: It cannot be read.
            OSError: A queue pair cannot be made.
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
        """Closes all lanes."""
        with self._lock:
            for channel in list(self._channels):
                self._forget(channel)

    def _sweep(self) -> None:
        """Closes channels whose other end has died without a word, and asks the others anew.

        What asks is a write of no bytes: the adapter at the other end answers it for its process,
        as long as that is there.
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
        """Connects this end of a lane to the other one, in place of what it had been before."""
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
            # The other end may have ports that this one reaches.
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
    """Returns what the other end must know of a queue pair."""
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
