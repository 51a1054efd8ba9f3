"""Messages between verbs transports: memory descriptors, and the connection of queue pairs.

All numbers are big-endian. Descriptors are passed on by users; requests and replies use the
existing connection between the two processes.
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
_REQUEST = struct.Struct(f"!BB{CHANNEL_ID_LEN}sB")
_RAIL = struct.Struct("!BB?16sHBIIH")
_REPLY = struct.Struct("!BB")


class WireError(RDMATransportError):
    """A message of the other process is malformed."""


class ChannelCommand(IntEnum):
    """The command of a channel request."""

    #: Connect an end for each requested rail, and replace a previous rail with the same number.
    CONNECT = 1
    #: Remove the channel.
    CLOSE = 2


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
class RailEndpoint:
    """One end of a rail: its number, queue pair and port."""

    rail: int
    #: The index of the device of the port, in the order of the keys of descriptors.
    device: int
    is_ethernet: bool
    end: QueuePairEnd


@dataclass(frozen=True)
class ChannelRequest:
    """A request of the side that reads and writes."""

    command: ChannelCommand
    channel: bytes
    rails: Sequence[RailEndpoint] = ()

    def pack(self) -> bytes:
        """Encode the request."""
        head = _REQUEST.pack(VERSION, self.command, self.channel, len(self.rails))
        return head + b"".join(map(_pack_rail, self.rails))

    @classmethod
    def unpack(cls, packed: bytes) -> ChannelRequest:
        """Decode a request.

        Raises:
            WireError: The bytes are malformed.
        """
        version, command, channel, count = _take(_REQUEST, packed, 0)
        _check(version, len(packed), _REQUEST.size + count * _RAIL.size)
        if command not in list(ChannelCommand):
            raise WireError(
                f"the request has an unknown command {command}: install the same mesh-rdma"
            )
        return cls(ChannelCommand(command), channel, _unpack_rails(packed[_REQUEST.size :]))


@dataclass(frozen=True)
class ChannelReply:
    """The owner's ends of the rails that it has accepted."""

    rails: Sequence[RailEndpoint]

    def pack(self) -> bytes:
        """Encode the reply."""
        return _REPLY.pack(VERSION, len(self.rails)) + b"".join(map(_pack_rail, self.rails))

    @classmethod
    def unpack(cls, packed: bytes) -> ChannelReply:
        """Decode a reply.

        Raises:
            WireError: The bytes are malformed.
        """
        version, count = _take(_REPLY, packed, 0)
        _check(version, len(packed), _REPLY.size + count * _RAIL.size)
        return cls(_unpack_rails(packed[_REPLY.size :]))


def _pack_rail(one: RailEndpoint) -> bytes:
    end = one.end
    of_pair = (end.gid, end.lid, end.mtu, end.number, end.first_packet, end.reads_max)
    return _RAIL.pack(one.rail, one.device, one.is_ethernet, *of_pair)


def _unpack_rails(packed: bytes) -> list[RailEndpoint]:
    return [
        RailEndpoint(rail, device, is_ethernet, QueuePairEnd(*of_pair))
        for rail, device, is_ethernet, *of_pair in _RAIL.iter_unpack(packed)
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
