"""Constants and small encodings that both ends of a message must agree on.

The core defines the frame. This module defines the metadata that Python puts into it.
"""

from __future__ import annotations

from functools import lru_cache

from mesh_core._shapes.shape import Extent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._shapes.shape import Region

# Kinds of frames; see docs/protocol/frame.md.
CALL, ANSWER, FAULT, CANCEL, POST, SPAWN, DIED, RELEASE = 16, 17, 18, 19, 21, 24, 33, 41
# Well-known ports.
AGENT = 1
# Reasons for a reply without a value.
RAISED, PROC_DIED, ACTOR_FAILED, STOPPED, DEADLINE, CANCELLED, NO_REPLY, HOST_DIED = range(1, 9)
# Flags in the first byte of the metadata of a call.
UNDECORATED, EXPLICIT_PORT, INTERNAL, BY_LAYER = 1, 2, 4, 8
# Internal messages to actors.
STOP, READY, FREEZE = "stop", "ready", "freeze"


def call_meta(name: str, flags: int, region: Region) -> bytes:
    """Encode the name of a method, the flags and the shape of the called region."""
    shape = ",".join(
        f"{label}={size}" for label, size in zip(region.labels, region.sizes, strict=True)
    )
    return bytes([flags]) + f"{name}\0{shape}".encode()


@lru_cache(maxsize=4096)
def read_call_meta(meta: bytes) -> tuple[str, int, Extent]:
    """Decode the name, the flags and the extent of the region."""
    name, _, shape = meta[1:].decode().partition("\0")
    pairs = [pair.rpartition("=") for pair in shape.split(",") if pair]
    extent = Extent(tuple(p[0] for p in pairs), tuple(int(p[2]) for p in pairs))
    return name, meta[0], extent


def proc_id(host: int, slot: int) -> int:
    """Pack a process id into one number."""
    return (host << 32) | slot


def proc_name(proc: int) -> str:
    """Format a process id as `host.slot`."""
    return f"{proc >> 32}.{proc & 0xFFFF_FFFF}"


def proc_of(name: str) -> int:
    """Parse a process id from the format of `proc_name`."""
    host, _, slot = name.partition(".")
    return proc_id(int(host), int(slot))
