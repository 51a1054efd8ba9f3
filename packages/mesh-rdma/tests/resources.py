"""The resources that a process holds for mesh-rdma, which tests compare before and after."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import NamedTuple

from mesh_core.testing import wait_until
from mesh_rdma import RDMABuffer, _core

__all__ = ["ResourceCounts", "count_resources", "expect_no_more_than", "listening_sockets"]


class ResourceCounts(NamedTuple):
    """Counts that must not grow."""

    mappings: int
    descriptors: int
    threads: int
    registrations: int
    deferred: int
    incoming_connections: int
    outgoing_connections: int


def count_resources() -> ResourceCounts:
    """Count the resources that this process holds now."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    mappings = sum("memfd:mesh-rdma" in line for line in maps.splitlines())
    descriptors = len(os.listdir("/proc/self/fd"))
    return ResourceCounts(
        mappings, descriptors, len(os.listdir("/proc/self/task")), *_core.counts()
    )


def listening_sockets(buffers: list[RDMABuffer]) -> list[str]:
    """Return the sockets of these owners that still exist in the system."""
    there = Path("/proc/net/unix").read_text(encoding="utf-8")
    tokens = {bytes(buffer._handle.identity[0]).hex() for buffer in buffers}
    return [token for token in tokens if token in there]


def expect_no_more_than(before: ResourceCounts) -> None:
    """Wait until no more resources are held than before."""
    # A stored exception keeps its frames alive, which keep resources alive.
    gc.collect()
    try:
        wait_until(lambda: not _grown(before))
    except AssertionError:
        raise AssertionError(f"there is more than before: {', '.join(_grown(before))}") from None


def _grown(before: ResourceCounts) -> list[str]:
    now = count_resources()
    return [
        f"{name}: {count}, not {then}"
        for name, count, then in zip(ResourceCounts._fields, now, before, strict=True)
        if count > then
    ]
