"""The actor by which hosts examine each other: one on each, calling the others."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median

from mesh_core import Actor, MeshError, concurrent_endpoint

__all__ = ["Examiner", "HostFacts", "PairFacts", "core_version"]

_PINGS = 20
_PAIR_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host says of itself."""

    name: str
    python: str
    mesh: str
    cpus: int
    pid: int


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What one host has found out about another; what it could not is None."""

    resolved: tuple[str, ...]
    """The addresses that the name of the other has here; none when it is not known."""
    latency_s: float | None = None
    """For a call there and back."""
    bytes_per_s: float | None = None
    problem: str = ""
    """Why the other could not be called."""


class Examiner(Actor):
    """Says what its host is like, and finds out about others."""

    @concurrent_endpoint
    async def facts(self) -> HostFacts:
        """Describes this host."""
        return HostFacts(
            socket.gethostname(),
            platform.python_version(),
            core_version(),
            os.cpu_count() or 1,
            os.getpid(),
        )

    @concurrent_endpoint
    async def clock(self) -> float:
        """Gives the time of this host's clock, in seconds since 1970."""
        return time.time()

    @concurrent_endpoint
    async def take(self, payload: bytes) -> int:
        """Takes a payload, and says how long it is."""
        return len(payload)

    @concurrent_endpoint
    async def examine(self, other: Examiner, name: str, payload_len: int) -> PairFacts:
        """Looks the other's name up, and calls it: with nothing, often, and with much, once."""
        resolved = await asyncio.to_thread(_look_up, name)
        try:
            async with asyncio.timeout(_PAIR_LIMIT_S):
                latencies = [await _timed(other, b"") for _ in range(_PINGS)]
                took_s = await _timed(other, bytes(payload_len)) if payload_len else None
        except TimeoutError:
            why = f"no answer in {_PAIR_LIMIT_S:g} s"
            return PairFacts(resolved, problem=why)
        except MeshError as error:
            return PairFacts(resolved, problem=str(error).partition("\n")[0])
        # The first calls open the link.
        latency_s = median(latencies[_PINGS // 2 :])
        if took_s is None:
            return PairFacts(resolved, latency_s)
        return PairFacts(resolved, latency_s, payload_len / max(took_s - latency_s, 1e-6))


async def _timed(other: Examiner, payload: bytes) -> float:
    began = time.perf_counter()
    await other.take.call_one(payload)
    return time.perf_counter() - began


def _look_up(name: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))


def core_version() -> str:
    """Gives the version of mesh-core here."""
    try:
        return version("mesh-core")
    except PackageNotFoundError:
        return "not installed"  # It runs from its source.
