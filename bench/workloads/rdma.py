"""Memory to memory: long reads relative to a memory copy, short ones relative to a ping-pong.

Each round measures every transport once and a copy of the same size, so that noise affects all; the
best round counts.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.record import Recorder
from bench.scale import Scale
from bench.socket_floor import socket_floor

if TYPE_CHECKING:
    from bench.drivers.mesh_rdma import RDMADriver
    from bench.drivers.monarch_rdma import MonarchRDMADriver

_ROUNDS = 9
_SHORT = 8
#: Size of reads that the calling thread executes alone.
_PIECE = 256 << 10
_RECEIVERS = 8
_GB = 1e9


def long_size(scale: Scale) -> int:
    """Return the length of a long read: 256 MiB, or less for a quick run."""
    return 4 * scale.payloads[-1][1]


def long(driver: RDMADriver | MonarchRDMADriver, scale: Scale, record: Recorder) -> None:
    """Read and write another process's memory by every transport, a copy and a plain stream."""
    nbytes = long_size(scale)
    if driver.name == "monarch_rdma":
        driver.start(1)
        rate = nbytes / min(driver.read_times(nbytes, 5)) / _GB
        for transport in ("arena", "attach", "attach_alone", "unix", "tcp"):
            record.value(f"{transport}_read", rate, "GB/s")
        return
    # The floor forks, which must happen before threads are started.
    with socket_floor(nbytes) as stream:
        driver.start(1)
        ours, other = _warm(nbytes), _warm(nbytes)
        view = memoryview(ours)
        runs: dict[str, Callable[[], object]] = {
            "memcpy": lambda: np.copyto(ours, other),
            "stream": lambda: stream.read_into(view),
        }
        buffers = {kind: driver.register(nbytes, kind) for kind in ("arena", "plain")}
        for transport, kind in driver.transports:
            buffer = driver.via(buffers[kind], transport)
            runs[f"{transport}_read"] = lambda buffer=buffer: driver.read(buffer, ours)  # type: ignore[misc]
            if transport == "attach":
                runs["attach_alone_read"] = lambda buffer=buffer: _in_pieces(driver, buffer, view)  # type: ignore[misc]
            runs[f"{transport}_write"] = lambda buffer=buffer: driver.write(buffer, other)  # type: ignore[misc]
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(_ROUNDS):
            for name, run in runs.items():
                best[name] = min(best[name], _seconds(run))
    for name, seconds in best.items():
        record.value(name, nbytes / seconds / _GB, "GB/s")
    driver.stop()


def short(driver: RDMADriver | MonarchRDMADriver, scale: Scale, record: Recorder) -> None:
    """Read 8 bytes of another process by every transport, and by a ping-pong over loopback."""
    if driver.name == "monarch_rdma":
        driver.start(1)
        times = driver.read_times(_SHORT, scale.block_calls)
        for transport in ("arena", "attach", "unix", "tcp"):
            record.times(f"{transport}_", times, "us")
        return
    with socket_floor(_SHORT) as stream:
        driver.start(1)
        dst = memoryview(bytearray(_SHORT))
        runs: dict[str, Callable[[], object]] = {"ping_pong": lambda: stream.read_into(dst)}
        buffers = {kind: driver.register(4096, kind)[:_SHORT] for kind in ("arena", "plain")}
        for transport, kind in driver.transports:
            buffer = driver.via(buffers[kind], transport)
            runs[transport] = lambda buffer=buffer: driver.read(buffer, dst)  # type: ignore[misc]
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(scale.blocks):
            for name, run in runs.items():
                times[name] += [_seconds(run) for _ in range(scale.block_calls)]
    for name, taken in times.items():
        record.times(f"{name}_", taken, "us")
    driver.stop()


def push(driver: RDMADriver, scale: Scale, record: Recorder) -> None:
    """Publish new contents to eight processes, and compare with one copy and eight mappings."""
    nbytes = long_size(scale)
    data = _warm(nbytes)
    bare = _bare_push(data)
    driver.start(_RECEIVERS)
    weights = driver.published(nbytes)
    times = []
    for step in range(_ROUNDS):
        data[-1] = step
        started = time.perf_counter()
        seen = driver.push(weights, data, step - 1)
        times.append(time.perf_counter() - started)
        assert seen == [step] * _RECEIVERS
    # The first rounds allocate memory from the system.
    record.value("push", min(times[3:]) * 1e3, "ms")
    record.value("copy_and_maps", bare * 1e3, "ms")
    driver.stop()


def _in_pieces(driver: RDMADriver, buffer: Any, view: memoryview) -> None:
    for start in range(0, len(view), _PIECE):
        driver.read(buffer[start : start + _PIECE], view[start : start + _PIECE])


def _bare_push(data: np.ndarray[Any, np.dtype[np.uint8]]) -> float:
    """Copy into shared memory, map it in eight processes in turn, and return the best time in s."""
    fd = os.memfd_create("bench")
    os.ftruncate(fd, len(data))
    there = np.frombuffer(mmap.mmap(fd, len(data)), np.uint8)
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        np.copyto(there, data)
        for _ in range(_RECEIVERS):
            with mmap.mmap(fd, len(data), prot=mmap.PROT_READ) as view:
                assert view[-1] == data[-1]
        best = min(best, time.perf_counter() - started)
    os.close(fd)
    return best


def _warm(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ones(nbytes, np.uint8)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
