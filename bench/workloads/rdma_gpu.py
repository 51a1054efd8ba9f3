"""Reads of another process's device memory, compared with a copy on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.record import Recorder
from bench.scale import Scale
from bench.workloads.rdma import long_size

if TYPE_CHECKING:
    from bench.drivers.mesh_rdma import RDMADriver

_ROUNDS = 9
_GB = 1e9


def long(driver: RDMADriver, scale: Scale, record: Recorder) -> None:
    """Read device memory into device memory, by CUDA IPC and through host memory, in turn."""
    import torch

    nbytes = long_size(scale)
    driver.start(1)
    ours = torch.ones(nbytes, dtype=torch.uint8, device="cuda")
    other = torch.ones_like(ours)
    there = driver.register(nbytes, "gpu")
    plain = driver.register(nbytes, "plain")

    def copy() -> None:
        ours.copy_(other)
        torch.cuda.synchronize()

    runs: dict[str, Callable[[], object]] = {"device_copy": copy}
    for transport in ("cuda", "staged"):
        buffer = driver.via(there, transport)
        runs[f"{transport}_read"] = lambda buffer=buffer: driver.read(buffer, ours)  # type: ignore[misc]
    runs["host_read"] = lambda: driver.read(plain, ours)
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            best[name] = min(best[name], _seconds(run))
    for name, seconds in best.items():
        record.value(name, nbytes / seconds / _GB, "GB/s")
    driver.stop()


def _seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
