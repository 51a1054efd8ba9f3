"""The actor that probes a host and its connections; one runs on each host and calls the others."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from mesh_core import Actor, MeshError, concurrent_endpoint

__all__ = ["HostProbe", "HostProbeResult", "PairProbeResult", "core_version"]

_PINGS = 20
_PAIR_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class HostProbeResult:
    """The properties that a host reports."""

    name: str
    python: str
    mesh: str
    cpus: int
    pid: int


@dataclass(frozen=True, slots=True)
class PairProbeResult:
    """The measurements of one host for another host; None if a measurement failed."""

    resolved: tuple[str, ...]
    """The addresses that the name of the other host resolves to here; empty if it does not."""
    latency_s: float | None = None
    """The shortest round-trip time of an empty call, in seconds."""
    bytes_per_s: float | None = None
    problem: str = ""
    """Why the other host could not be called; empty if it could."""


class HostProbe(Actor):
    """Actor that describes its host and probes other hosts."""

    @concurrent_endpoint
    async def describe(self) -> HostProbeResult:
        """Describe this host."""
        return HostProbeResult(
            socket.gethostname(),
            platform.python_version(),
            core_version(),
            os.cpu_count() or 1,
            os.getpid(),
        )

    @concurrent_endpoint
    async def clock(self) -> float:
        """Return the time of this host's clock, in seconds since the epoch."""
        return time.time()

    @concurrent_endpoint
    async def take(self, payload: bytes) -> int:
        """Receive a payload and return its length."""
        return len(payload)

    @concurrent_endpoint
    async def examine(self, other: HostProbe, name: str, payload_len: int) -> PairProbeResult:
        """Resolve the name of another host, then measure latency and bandwidth to it."""
        resolved = await asyncio.to_thread(_look_up, name)
        try:
            async with asyncio.timeout(_PAIR_LIMIT_S):
                latencies = [await _timed(other, b"") for _ in range(_PINGS)]
                took_s = await _timed(other, bytes(payload_len)) if payload_len else None
        except TimeoutError:
            why = f"no response in {_PAIR_LIMIT_S:g} s"
            return PairProbeResult(resolved, problem=why)
        except MeshError as error:
            return PairProbeResult(resolved, problem=str(error).partition("\n")[0])
        # The first calls establish the connection. Load on the hosts delays some of the others, and
        # the path delays all of them.
        latency_s = min(latencies[_PINGS // 2 :])
        if took_s is None:
            return PairProbeResult(resolved, latency_s)
        return PairProbeResult(resolved, latency_s, payload_len / max(took_s - latency_s, 1e-6))


async def _timed(other: HostProbe, payload: bytes) -> float:
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
    """Return the installed version of mesh-core."""
    try:
        return version("torchmesh-core")
    except PackageNotFoundError:
        return "not installed"  # The package runs from its source.
