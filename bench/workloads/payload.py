"""Payloads in a round trip and to many workers, and whether received payloads are writable.

The time of a payload includes the call, the check of the reply at both ends and its release, so
that both allocation and deallocation of memory are included.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale

_S_MAX = 8.0


def echo(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Send bytes and numpy arrays of each size to one worker, which returns them."""
    driver.start(1)
    for label, size, reps in scale.payloads:
        for kind in ("bytes", "numpy"):
            record.times(f"{kind}_{label}_", _echo_times(driver, kind, size, reps), "us")
    read_size = scale.payloads[-1][1]
    times = _echo_times(driver, "numpy", read_size, scale.payloads[-1][2], read=True)
    record.times(f"numpy_{scale.payloads[-1][0]}_and_read_", times, "us")
    driver.stop()


def echo_bytes(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Send only bytes: a workload for a floor that supports nothing else."""
    driver.start(1)
    for label, size, reps in scale.payloads:
        record.times(f"bytes_{label}_", _echo_times(driver, "bytes", size, reps), "us")
        record.times(f"numpy_{label}_", _echo_times(driver, "numpy", size, reps), "us")
    driver.stop()


def fill_and_read(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Measure the floor of a large payload: one copy in and one read by another process."""
    label, size, reps = scale.payloads[-1]
    driver.start(1)
    x = _payload("numpy", size)
    for name, operation in (
        ("filled_and_read", lambda: driver.cast(x, read=True)),
        ("three_copies", lambda: driver.echo(x)),
    ):
        times = []
        for _ in range(3 * reps):
            started = time.perf_counter()
            operation()
            times.append(time.perf_counter() - started)
        record.times(f"{name}_{label}_", times, "us")
    driver.stop()


def cast(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Send one large array to every worker of a mesh."""
    label, size, _ = scale.payloads[-1]
    driver.start(scale.procs)
    x = _payload("numpy", size)
    for name, read in (("", False), ("and_read_", True)):
        driver.cast(x, read=read)
        times: list[float] = []
        until = time.perf_counter() + 2 * _S_MAX
        while len(times) < scale.casts and (not times or time.perf_counter() < until):
            started = time.perf_counter()
            driver.cast(x, read=read)
            times.append(time.perf_counter() - started)
        record.times(f"numpy_{label}_{name}", times, "us")
    driver.stop()


def isolation(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Find out whether received data is writable, and whether others see a write."""
    driver.start(1)
    x = _payload("numpy", scale.payloads[-1][1])
    first = int(x[0])
    record.value("receiver_can_write", _can(lambda: driver.scribble(x)), "bool")
    record.value("sender_is_spared", float(int(x[0]) == first), "bool")
    answer = driver.echo(x)
    kept = driver.echo(x)
    record.value("answer_can_be_written", _can(lambda: answer.__setitem__(0, 255)), "bool")
    record.value("answers_are_apart", float(int(kept[0]) == first), "bool")
    driver.stop()


def _can(write: Any) -> float:
    # The kind of the failure depends on the framework: any exception means not writable.
    try:
        write()
    except Exception:
        return 0.0
    return 1.0


def _payload(kind: str, size: int) -> Any:
    pattern = np.arange(size, dtype=np.uint64).astype(np.uint8) | 1
    return pattern.tobytes() if kind == "bytes" else pattern


def _echo_times(
    driver: Driver, kind: str, size: int, reps: int, *, read: bool = False
) -> list[float]:
    x = _payload(kind, size)
    largest = int(x.max()) if read else 0
    assert bytes(driver.echo(x)) == bytes(x), "what came back is not what was sent"
    times: list[float] = []
    until = time.perf_counter() + _S_MAX
    while len(times) < reps and (len(times) < 2 or time.perf_counter() < until):
        started = time.perf_counter()
        answer = driver.echo(x)
        assert len(answer) == size
        assert answer[0] == x[0]
        assert answer[-1] == x[-1]
        if read:
            assert int(answer.max()) == largest
        del answer
        times.append(time.perf_counter() - started)
    return times
