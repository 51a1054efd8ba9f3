"""A program that registers memory and reads it from new processes, controlled by a test.

It reads one command per line and replies with one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from mesh_core import Actor, endpoint, this_host
from mesh_rdma import RDMABuffer, allocate
from mesh_rdma.testing import rejected_connections

#: No other bytes of the program have this value.
PATTERN = b"memory of the owner!" * 4096
TRANSPORTS = ("arena", "unix", "tcp")


class Offer(Actor):
    """Registers memory, and counts the resources of its process."""

    def __init__(self) -> None:
        self.memory = allocate(len(PATTERN))
        self.memory[:] = PATTERN

    @endpoint
    def buffer(self) -> RDMABuffer:
        return RDMABuffer(self.memory)

    @endpoint
    def usage(self) -> dict[str, Any]:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        (rss,) = (int(line.split()[1]) for line in status.splitlines() if line[:6] == "VmRSS:")
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "rss_kib": rss,
            "refusals": rejected_connections()._asdict(),
        }


class Reader(Actor):
    """Reads from a process that has no connection to the owner of the memory yet."""

    @endpoint
    def read(self, buffer: RDMABuffer) -> list[str]:
        """Return the transports that delivered the correct bytes."""
        good = []
        for transport in TRANSPORTS:
            here = bytearray(buffer.size())
            buffer.via(transport).read_into(here, timeout=30.0).get()
            if here == PATTERN:
                good.append(transport)
        return good


def main() -> None:
    offer = this_host().spawn_procs(name="offer").spawn("offer", Offer)
    buffer = offer.buffer.call_one().get()
    for line in sys.stdin:
        answer: Any = None
        match line.strip():
            case "usage":
                answer = offer.usage.call_one().get()
            case "token":
                answer = bytes(buffer._handle.identity[0]).hex()
            case "read":
                procs = this_host().spawn_procs(name="reader")
                answer = procs.spawn("reader", Reader).read.call_one(buffer).get()
                procs.stop().get()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
