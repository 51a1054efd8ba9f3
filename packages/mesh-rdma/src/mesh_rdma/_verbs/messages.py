"""Messages between verbs transports: memory descriptors, and the connection of queue pairs.

All numbers are big-endian. Descriptors are passed on by users; offers and answers use the existing
connection between the two processes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mesh_rdma._errors import RDMATransportError
from mesh_rdma._verbs.binding import QueuePairEnd

#: The first byte of every message, which is increased when the format changes.
VERSION = 1

CHANNEL_ID_LEN = 16

_DESCRIPTOR = struct.Struct("!BBQB")
_KEY = struct.Struct("!QI")
_OFFER = struct.Struct(f"!BB{CHANNEL_ID_LEN}sB")
_LANE = struct.Struct("!BB?16sHBIIH")
_ANSWER = struct.Struct("!BB")


class WireError(RDMATransportError):
    """A message of the other process is malformed."""


class Purpose(IntEnum):
    """The purpose of an offer."""

    #: Connect an end for each offered lane, and replace a previous lane with the same number.
    CONNECT = 1
    #: Remove the channel.
    LEAVE = 2


@dataclass(frozen=True)
class Descriptor:
    """Memory of another process: its length, and its address and key for each device there."""

    length: int
    is_writable: bool
    #: The address of the first byte and the key, by device.
    keys: tuple[tuple[int, int], ...]

    def pack(self) -> bytes:
        """Encode the descriptor."""
        head = _DESCRIPTOR.pack(VERSION, self.is_writable, self.length, len(self.keys))
        return head + b"".join(_KEY.pack(*key) for key in self.keys)

    @classmethod
    def unpack(cls, packed: bytes) -> Descriptor:
        """Decode a descriptor.

        Raises:
            WireError: The bytes are malformed.
        """
        version, is_writable, length, count = _take(_DESCRIPTOR, packed, 0)
        _check(version, len(packed), _DESCRIPTOR.size + count * _KEY.size)
        keys = (_take(_KEY, packed, _DESCRIPTOR.size + _KEY.size * place) for place in range(count))
        return cls(length, bool(is_writable), tuple(keys))


@dataclass(frozen=True)
class LaneEnd:
    """One end of a lane: its number, queue pair and port."""

    lane: int
    #: The index of the device of the port, in the order of the keys of descriptors.
    device: int
    is_ethernet: bool
    end: QueuePairEnd


@dataclass(frozen=True)
class Offer:
    """A request of the side that wants to read and write."""

    purpose: Purpose
    channel: bytes
    lanes: Sequence[LaneEnd] = ()

    def pack(self) -> bytes:
        """Encode the offer."""
        head = _OFFER.pack(VERSION, self.purpose, self.channel, len(self.lanes))
        return head + b"".join(map(_pack_lane, self.lanes))

    @classmethod
    def unpack(cls, packed: bytes) -> Offer:
        """Decode an offer.

        Raises:
            WireError: The bytes are malformed.
        """
        version, purpose, channel, count = _take(_OFFER, packed, 0)
        _check(version, len(packed), _OFFER.size + count * _LANE.size)
        if purpose not in list(Purpose):
            raise WireError(
                f"the offer has an unknown purpose {purpose}: install the same mesh-rdma"
            )
        return cls(Purpose(purpose), channel, _unpack_lanes(packed[_OFFER.size :]))


@dataclass(frozen=True)
class Answer:
    """The owner's ends of the lanes that it has accepted."""

    lanes: Sequence[LaneEnd]

    def pack(self) -> bytes:
        """Encode the answer."""
        return _ANSWER.pack(VERSION, len(self.lanes)) + b"".join(map(_pack_lane, self.lanes))

    @classmethod
    def unpack(cls, packed: bytes) -> Answer:
        """Decode an answer.

        Raises:
            WireError: The bytes are malformed.
        """
        version, count = _take(_ANSWER, packed, 0)
        _check(version, len(packed), _ANSWER.size + count * _LANE.size)
        return cls(_unpack_lanes(packed[_ANSWER.size :]))


def _pack_lane(one: LaneEnd) -> bytes:
    end = one.end
    of_pair = (end.gid, end.lid, end.mtu, end.number, end.first_packet, end.reads_max)
    return _LANE.pack(one.lane, one.device, one.is_ethernet, *of_pair)


def _unpack_lanes(packed: bytes) -> list[LaneEnd]:
    return [
        LaneEnd(lane, device, is_ethernet, QueuePairEnd(*of_pair))
        for lane, device, is_ethernet, *of_pair in _LANE.iter_unpack(packed)
    ]


def _take(form: struct.Struct, packed: bytes, offset: int) -> tuple[Any, ...]:
    try:
        return form.unpack_from(packed, offset)
    except struct.error as error:
        raise WireError(f"{len(packed)} bytes are too few: is the other end verbs?") from error


def _check(version: int, length: int, expected: int) -> None:
    if version != VERSION:
        raise WireError(
            f"the other end speaks version {version}, not {VERSION}: install the same mesh-rdma"
        )
    if length != expected:
        raise WireError(f"{length} bytes where {expected} were announced: is the other end verbs?")
