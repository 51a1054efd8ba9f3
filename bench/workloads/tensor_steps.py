"""A training loop in every way: one process, two under torchrun, two of Mesh and a controller.

The variants take turns, and only one runs at a time. The sizes are chosen so that the mean
operation takes about the duration of the case; the actual duration is measured, too.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.affinity import pin_process
from bench.drivers.tensor_program import TensorDriver
from bench.record import Recorder
from bench.scale import Scale
from bench.spmd.pair import Pair
from bench.spmd.training import Sizes, State, fresh, operations, step
from bench.workloads.tensor_cases import CASES

_RANKS = 2
#: After this number of steps all variants must have reached the same loss.
_WARM_STEPS = 4
_PEER_STEPS = 2
_BYTES = 64 << 20


def two(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Two layers, placed by the scheduler."""
    _compare(driver, scale, record, layers=2, apart=False)


def eight(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Eight layers, placed by the scheduler."""
    _compare(driver, scale, record, layers=8, apart=False)


def two_apart(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Two layers, with the controller on a separate core."""
    _compare(driver, scale, record, layers=2, apart=True)


def eight_apart(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Eight layers, with the controller on a separate core."""
    _compare(driver, scale, record, layers=8, apart=True)


def reduce(driver: TensorDriver, scale: Scale, record: Recorder) -> None:
    """Average 64 MiB over two processes, in turn with two processes that use only gloo."""
    with Pair() as pair:
        pair.hold(_BYTES)
        driver.start(_RANKS)
        with driver.activate():
            x = torch.ones(_BYTES // 4)
            part = x[:1]
        average, average_ = driver.api.average, driver.api.average_
        assert average is not None
        assert average_ is not None

        def in_place() -> float:
            started = time.perf_counter()
            average_(x)
            driver.api.fetch(part)
            return time.perf_counter() - started

        def to_new() -> float:
            started = time.perf_counter()
            driver.api.fetch(average(x)[:1])
            return time.perf_counter() - started

        runs = {
            "gloo": pair.reduce,
            "in_place": in_place,
            "gloo_clone": pair.clone_and_reduce,
            "to_new": to_new,
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(2 + 2 * scale.blocks):
            for name, run in runs.items():
                times[name].append(run())
        for name, taken in times.items():
            record.value(f"{name}_best", min(taken) * 1e3, "ms", n=len(taken))
            record.times(f"{name}_", taken[2:], "ms")


def _compare(
    driver: TensorDriver, scale: Scale, record: Recorder, layers: int, apart: bool
) -> None:
    if driver.is_peer:
        driver.start(_RANKS)
        for case, (width, batch) in CASES.items():
            _measure_peer(driver, record, case, Sizes(layers, width, batch))
        return
    with Pair() as pair:
        driver.start(_RANKS)
        if apart:
            first, *_, last = sorted(os.sched_getaffinity(0))
            pair.pin([first])
            driver.pin([first])
            pin_process([last])
        for case, (width, batch) in CASES.items():
            _measure(driver, pair, scale, record, case, Sizes(layers, width, batch))


def _measure(
    driver: TensorDriver, pair: Pair, scale: Scale, record: Recorder, case: int, sizes: Sizes
) -> None:
    local = fresh(sizes)
    count = operations(fresh(sizes))
    ways: dict[str, Callable[[int], float]] = {"one": lambda n: _local_seconds(local, n)}
    losses = {"one": _last_local(local)}
    for name, loss in pair.prepare(sizes, _WARM_STEPS).items():
        losses[name] = loss
        ways[name] = lambda n, name=name: pair.train(name, n)  # type: ignore[misc]
    for name, one in _ours(driver, record, sizes).items():
        losses[name] = _train(driver, one, _WARM_STEPS)[1]
        ways[name] = lambda n, one=one: _train(driver, one, n)[0]  # type: ignore[misc]
    for name, loss in losses.items():
        assert abs(loss - losses["one"]) < 1e-3 * abs(losses["one"]), (name, losses)
    taken_s = scale.block_s_max / 20
    steps = {name: max(2, int(taken_s / (way(3) / 3))) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(2 * scale.blocks - 1):
        for name, way in ways.items():
            times[name].append(way(steps[name]) / steps[name])
    for name, taken in times.items():
        middle, best = statistics.median(taken), min(taken)
        record.value(f"{case}us_{name}", best * 1e3, "ms", p50=middle * 1e3, steps=steps[name])
    mean = min(times["one"]) / count
    record.value(f"{case}us_mean_op", mean * 1e6, "us", operations=count, sizes=vars(sizes))


def _ours(
    driver: TensorDriver, record: Recorder, sizes: Sizes
) -> dict[str, Callable[[], torch.Tensor]]:
    average_ = driver.api.average_
    mine, alone = _placed(driver, sizes), _placed(driver, sizes)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "eager": lambda: step(mine, average_),
        "eager_alone": lambda: step(alone),
    }
    if driver.api.trace is None:
        record.left_out("replayed training", f"{driver.name} has no trace")
        return ways
    trained, trained_alone = _placed(driver, sizes), _placed(driver, sizes)
    traced = driver.api.trace(lambda state: step(state, average_))
    traced_alone = driver.api.trace(step)
    ways["replayed"] = lambda: traced(trained)
    ways["replayed_alone"] = lambda: traced_alone(trained_alone)
    return ways


def _measure_peer(driver: TensorDriver, record: Recorder, case: int, sizes: Sizes) -> None:
    state = _placed(driver, sizes)
    _train(driver, lambda: step(state), 1)
    taken = _train(driver, lambda: step(state), _PEER_STEPS)[0] / _PEER_STEPS
    record.value(f"{case}us_eager_alone", taken * 1e3, "ms", steps=_PEER_STEPS)


def _placed(driver: TensorDriver, sizes: Sizes) -> State:
    weights, inputs, goals = fresh(sizes)
    return [driver.place(one) for one in weights], driver.place(inputs), driver.place(goals)


def _train(driver: TensorDriver, one: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Return the seconds until all processes have completed all steps, and the last loss."""
    with driver.activate():
        started = time.perf_counter()
        for _ in range(steps):
            loss = one()
        found = driver.api.fetch(loss)
        took = time.perf_counter() - started
    return took, float(found)


def _last_local(state: State) -> float:
    for _ in range(_WARM_STEPS - 1):
        step(state)
    return step(state).item()


def _local_seconds(state: State, steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        loss = step(state)
    loss.item()
    return time.perf_counter() - started
