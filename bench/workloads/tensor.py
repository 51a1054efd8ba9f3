"""The cost to the program of one operation on distributed tensors, one fetch and one call."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

from bench.drivers.driver import Driver
from bench.drivers.tensor_program import TensorDriver
from bench.record import Recorder
from bench.scale import Scale
from bench.spmd.training import Sizes, fresh, step

_RANKS = 2
_LARGE = 64 << 20
_TRACED = 50
_MLP = Sizes(layers=8, width=64, batch=32)


def operations(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Issue additions that depend on each other, then fetch the last."""
    driver.start(_RANKS)
    count = scale.stream_len // (40 if driver.is_peer else 2)
    bare = _BareTensor(torch.ones(4, 4))
    local = torch.ones(4, 4)
    with driver.activate():
        x = torch.ones(4, 4)
        driver.api.fetch(issue_additions(x, 100))
    for _ in range(scale.blocks):
        with driver.activate():
            started, thread, process = _clocks()
            y = issue_additions(x, count)
            issued = time.thread_time() - thread
            driver.api.fetch(y)
            ended, _, process_ended = _clocks()
        record.value("cpu_thread", issued / count * 1e6, "us", n=count)
        record.value("cpu_process", (process_ended - process) / count * 1e6, "us", n=count)
        # The peer issues fewer: its time per operation does not depend on their number.
        record.value("adds", (ended - started) / count * 10_000 * 1e3, "ms", n=count)
        if not driver.is_peer:
            record.value(
                "bare_thread", _cpu(lambda: issue_additions(bare, count)) / count * 1e6, "us"
            )
            record.value("local_adds", _wall(lambda: issue_additions(local, 10_000)) * 1e3, "ms")
    driver.stop()


def hot_path(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Only issue additions for a while, to be profiled."""
    driver.start(_RANKS)
    count = 0
    with driver.activate():
        x = torch.ones(4, 4)
        until = time.perf_counter() + 5 * scale.block_s_max
        thread = time.thread_time()
        while time.perf_counter() < until:
            y = issue_additions(x, 1000)
            count += 1000
        record.value("cpu_thread", (time.thread_time() - thread) / count * 1e6, "us", n=count)
        driver.api.fetch(y)
    driver.stop()


def latency(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Fetch a small tensor, and call a function and an endpoint with it, in turn."""
    driver.start(_RANKS)
    driver.start_actors()
    with driver.activate():
        x = torch.ones(4, 4)
        runs: dict[str, Callable[[], Any]] = {
            "fetch": lambda: driver.api.fetch(x),
            "call": lambda: driver.call_bump(x),
            "endpoint": lambda: driver.touch(x),
        }
        for name, run in runs.items():
            for _ in range(10):
                run()
            times: list[float] = []
            for _ in range(scale.blocks):
                until = time.perf_counter() + scale.block_s_max
                for _ in range(scale.block_calls):
                    times.append(_wall(run))
                    if time.perf_counter() > until:
                        break
            record.times(f"{name}_", times, "ms")
    driver.stop()


def answers(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Measure the floor of `latency`: two processes reply to one message each."""
    driver.start(_RANKS)
    times = [_wall(lambda: driver.call_all(0)) for _ in range(scale.blocks * scale.block_calls)]
    record.times("", times, "ms")
    driver.stop()


def large(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Fetch 64 MiB, in turn with a copy of as many bytes."""
    driver.start(_RANKS)
    here, there = torch.ones(_LARGE // 4), torch.ones(_LARGE // 4)
    with driver.activate():
        x = torch.ones(_LARGE // 4)
        driver.api.fetch(x[:1])
    fetches, copies = [], []
    for _ in range(9):
        with driver.activate():
            fetches.append(_wall(lambda: driver.api.fetch(x)))
        copies.append(_wall(lambda: here.copy_(there)))
    record.times("fetch_", fetches, "ms")
    record.times("memcpy_", copies, "ms")
    driver.stop()


def trace(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Replay a trace of 50 additions."""
    if driver.api.trace is None:
        record.left_out("replay of a trace", f"{driver.name} has no trace")
        return
    driver.start(_RANKS)

    def additions(a: Any, b: Any) -> Any:
        return issue_additions(a, _TRACED, b)

    traced = driver.api.trace(additions)
    count = scale.block_calls // (4 if driver.is_peer else 1)
    with driver.activate():
        x = torch.ones(4, 4)
        driver.api.fetch(traced(x, x))
        driver.api.fetch(traced(x, x))
        for _ in range(scale.blocks):
            _, thread, process = _clocks()
            for _ in range(count):
                y = traced(x, x)
            issued = time.thread_time() - thread
            driver.api.fetch(y)
            record.value("cpu_thread", issued / count * 1e3, "ms", n=count)
            record.value("cpu_process", (_clocks()[2] - process) / count * 1e3, "ms", n=count)
    driver.stop()


def mlp(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Train 8 layers of 64 x 64: the cost of a step to the program, eager and replayed."""
    local = fresh(_MLP)
    driver.start(_RANKS)
    weights, inputs, goals = local
    state = [driver.place(one) for one in weights], driver.place(inputs), driver.place(goals)
    ways: dict[str, Callable[[], Any]] = {"eager": lambda: step(state)}
    if driver.is_peer:
        record.left_out("replayed MLP step", "traces of the peer take nothing that needs gradients")
    elif driver.api.trace is None:
        record.left_out("replayed MLP step", f"{driver.name} has no trace")
    else:
        traced = driver.api.trace(step)
        ways["replayed"] = lambda: traced(state)
    count = scale.block_calls // (80 if driver.is_peer else 4)
    for name, way in ways.items():
        with driver.activate():
            way()
            driver.api.fetch(way())
        for _ in range(scale.blocks):
            _, thread, process = _clocks()
            with driver.activate():
                for _ in range(count):
                    loss = way()
                issued = time.thread_time() - thread
                driver.api.fetch(loss)
            record.value(f"{name}_thread", issued / count * 1e3, "ms", n=count)
            record.value(f"{name}_process", (_clocks()[2] - process) / count * 1e3, "ms", n=count)
            record.value("local_thread", _cpu(lambda: step(local)) * 1e3, "ms")
    driver.stop()


def memory(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Issue operations that no process has acknowledged, and measure the retained memory."""
    driver.start(_RANKS)
    count = scale.stream_len // (8 if driver.is_peer else 1)
    with tempfile.TemporaryDirectory() as folder:
        go = Path(folder) / "go"
        with driver.activate():
            x = torch.ones(4, 4)
            driver.api.fetch(issue_additions(x, count // 4))
            driver.block(str(go))
            before = _resident()
            y = issue_additions(x, count)
            after = _resident()
            go.touch()
            driver.api.fetch(y)
    record.value("per_op", (after - before) / count, "B", n=count)
    driver.stop()


def issue_additions(x: Any, count: int, other: Any = None) -> Any:
    """Add to a tensor repeatedly; a profile is cut off at this name."""
    other = x if other is None else other
    y = x
    for _ in range(count):
        y = y + other
    return y


class _BareTensor(torch.Tensor):
    """The floor of torch for such a tensor: each operation only creates another one."""

    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    def __new__(cls, like: Any) -> _BareTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls(args[0])


def _clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()


def _cpu(run: Callable[[], Any]) -> float:
    started = time.thread_time()
    run()
    return time.thread_time() - started


def _wall(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _resident() -> int:
    """Return the resident bytes of this process, after returning free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
