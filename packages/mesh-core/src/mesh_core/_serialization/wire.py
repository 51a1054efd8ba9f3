"""Numbers and small encodings that both ends of a message must agree on.

The frame itself is the core's; this is what Python puts into its meta.
"""

from __future__ import annotations

from functools import lru_cache

from mesh_core._meshes.shape import Extent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._meshes.shape import Region

# Kinds of frames, as in docs/protocol/frame.md.
CALL, ANSWER, FAULT, CANCEL, POST, SPAWN, DIED, RELEASE = 16, 17, 18, 19, 21, 24, 33, 41
# Fixed ports.
AGENT = 1
# Why a call has no value.
RAISED, PROC_DIED, ACTOR_FAILED, STOPPED, DEADLINE, CANCELLED, NO_REPLY, HOST_DIED = range(1, 9)
# Flags at the start of the meta of a call.
UNDECORATED, EXPLICIT_PORT, INTERNAL, BY_LAYER = 1, 2, 4, 8
# What a message to an actor may ask for besides its endpoints.
STOP, READY = "stop", "ready"


def call_meta(name: str, flags: int, region: Region) -> bytes:
    """Says which method is called, and the shape of the region that is."""
    shape = ",".join(
        f"{label}={size}" for label, size in zip(region.labels, region.sizes, strict=True)
    )
    return bytes([flags]) + f"{name}\0{shape}".encode()


@lru_cache(maxsize=4096)
def read_call_meta(meta: bytes) -> tuple[str, int, Extent]:
    """Gives the name, the flags and the extent of the region."""
    name, _, shape = meta[1:].decode().partition("\0")
    pairs = [pair.rpartition("=") for pair in shape.split(",") if pair]
    extent = Extent(tuple(p[0] for p in pairs), tuple(int(p[2]) for p in pairs))
    return name, meta[0], extent


def proc_id(host: int, slot: int) -> int:
    """Packs a process id into one number."""
    return (host << 32) | slot


def proc_name(proc: int) -> str:
    """Writes a process id as `host.slot`."""
    return f"{proc >> 32}.{proc & 0xFFFF_FFFF}"


def proc_of(name: str) -> int:
    """Reads a process id that `proc_name` wrote."""
    host, _, slot = name.partition(".")
    return proc_id(int(host), int(slot))
