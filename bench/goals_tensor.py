"""The goals of mesh-tensor on one host, and the measurement for each of them.

The floor column contains the baseline of the goal from the same run: torch without a controller,
gloo alone, or a copy of as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.goals import Row, Source
from bench.goals_hosts import NO_PEER
from bench.workloads.tensor_cases import CASES

TENSOR = "mesh_tensor"
PEER_TENSOR = "monarch_tensor"


def _ours(workload: str, metric: str) -> Source:
    return Source(workload, metric, TENSOR)


def _operation_rows() -> Iterator[Row]:
    many, floor = "tensor.operations", "bare_thread"
    yield Row(
        "op", "CPU of the calling thread per small op", "us", _ours(many, "cpu_thread"),
        floor=_ours(many, floor), peer=PEER_TENSOR, limit=15,
    )  # fmt: skip
    yield Row(
        "op", "CPU of the controlling process per op", "us", _ours(many, "cpu_process"),
        floor=_ours(many, floor), peer=PEER_TENSOR, limit=20,
    )  # fmt: skip
    yield Row(
        "op", "10,000 adds and a fetch; floor: in one process", "ms", _ours(many, "adds"),
        floor=_ours(many, "local_adds"), peer=PEER_TENSOR, limit=600,
    )  # fmt: skip
    yield Row(
        "memory", "memory of the controller per op not done", "B",
        _ours("tensor.memory", "per_op"), peer=PEER_TENSOR, limit=64,
    )  # fmt: skip


def _answer_rows() -> Iterator[Row]:
    for metric, title, limit in (
        ("fetch_p50", "fetch 4 x 4, p50; floor: two bare answers", 0.5),
        ("fetch_p99", "  p99", 3.0),
        ("call_p50", "remote(f).call on 2 procs, p50", 0.8),
        ("endpoint_p50", "endpoint with a tensor, 2 procs, p50", 1.0),
    ):
        yield Row(
            "answer", title, "ms", _ours("tensor.latency", metric),
            floor=Source("tensor.answers", metric[-3:], "floors.socketpair"),
            peer=PEER_TENSOR, limit=limit,
        )  # fmt: skip
    yield Row(
        "large", "fetch 64 MiB, p50; floor: memcpy", "ms", _ours("tensor.large", "fetch_p50"),
        floor=_ours("tensor.large", "memcpy_p50"), peer=PEER_TENSOR, limit=60,
    )  # fmt: skip
    yield Row(
        "start", "2 procs to the first fetch; floor: import torch", "s",
        _ours("tensor_startup.first_fetch", "first_fetch"),
        floor=_ours("tensor_startup.first_fetch", "import_torch"),
        peer=PEER_TENSOR, floor_ratio=1.3,
    )  # fmt: skip


def _step_rows() -> Iterator[Row]:
    for metric, title, limit in (
        ("cpu_thread", "replay of 50 ops, CPU of the thread", 0.05),
        ("cpu_process", "  of the controlling process", None),
    ):
        yield Row(
            "replay", title, "ms", _ours("tensor.trace", metric), peer=PEER_TENSOR, limit=limit
        )
    for metric, title, limit in (
        ("eager_thread", "8-layer MLP step, CPU of the thread; floor: local", 3.0),
        ("eager_process", "  of the controlling process", None),
        ("replayed_thread", "  replayed, of the thread", 0.3),
        ("replayed_process", "  replayed, of the controlling process", None),
    ):
        yield Row(
            "mlp", title, "ms", _ours("tensor.mlp", metric),
            floor=_ours("tensor.mlp", "local_thread"), peer=PEER_TENSOR, limit=limit,
        )  # fmt: skip


def _reduce_rows() -> Iterator[Row]:
    work = "tensor_steps.reduce"
    for metric, floor, title in (
        ("in_place", "gloo", "64 MiB reduce_ of 2 procs, best; floor: gloo"),
        ("to_new", "gloo_clone", "64 MiB reduce of 2 procs, best; floor: clone, gloo"),
    ):
        yield Row(
            "reduce", title, "ms", _ours(work, f"{metric}_best"),
            floor=_ours(work, f"{floor}_best"), peer=NO_PEER, floor_ratio=1.1,
        )  # fmt: skip
        yield Row(
            "reduce", "  p50", "ms", _ours(work, f"{metric}_p50"),
            floor=_ours(work, f"{floor}_p50"), peer=NO_PEER,
        )  # fmt: skip


#: Minimum mean duration of an operation, in microseconds, at which a mode must keep up with
#: torchrun.
_KEEPS_UP_FROM = {"eager": 50, "replayed": 10}


def _training_rows() -> Iterator[Row]:
    for apart in (False, True):
        for layers in ("two", "eight"):
            for case in CASES:
                yield from _training_rows_of(layers, case, apart)


def _training_rows_of(layers: str, case: int, apart: bool) -> Iterator[Row]:
    work = f"tensor_steps.{layers}_apart" if apart else f"tensor_steps.{layers}"
    where = "controller apart" if apart else "2 cores for all"
    what = f"{layers} layers, ops of {case} us, {where}"
    name = f"{'apart' if apart else 'train'}-{layers}"
    mean = f"{case}us_mean_op"
    yield Row(name, f"{what}: mean op", "us", _ours(work, mean), peer=NO_PEER)

    def row(title: str, way: str, floor: str, peer: str = NO_PEER, goal: bool = False) -> Row:
        return Row(
            name, f"  {title}", "ms", _ours(work, f"{case}us_{way}"),
            floor=_ours(work, f"{case}us_{floor}"), peer=peer,
            floor_ratio=1.05 if goal and case >= _KEEPS_UP_FROM[way] else None,
        )  # fmt: skip

    yield row("eager; floor: torchrun by hand", "eager", "spmd", goal=True)
    yield row("replayed; floor: torchrun by hand", "replayed", "spmd", goal=True)
    yield row("eager; floor: torchrun with DDP", "eager", "ddp")
    yield row("eager; floor: one process", "eager", "one")
    peer = NO_PEER if apart else PEER_TENSOR
    yield row("eager, nothing reduced; floor: torchrun", "eager_alone", "spmd_alone", peer)
    yield row("replayed, nothing reduced; floor: torchrun", "replayed_alone", "spmd_alone")


def _gpu_rows() -> Iterator[Row]:
    """Yield the rows about a training step on a GPU, if a device is available."""
    if not Path("/dev/nvidiactl").exists():
        return
    work = "tensor_gpu.train"
    for metric, title, share in (
        ("eager", "transformer step on a GPU, eager; floor: one process", None),
        ("replayed", "  replayed", 1.05),
    ):
        for statistic in ("best", "p50"):
            yield Row(
                "gpu", f"{title}, {statistic}", "ms", _ours(work, f"{metric}_{statistic}"),
                floor=_ours(work, f"plain_{statistic}"), peer=NO_PEER,
                floor_ratio=share if statistic == "p50" else None,
            )  # fmt: skip


ROWS: tuple[Row, ...] = (
    *_operation_rows(),
    *_answer_rows(),
    *_step_rows(),
    *_reduce_rows(),
    *_training_rows(),
    *_gpu_rows(),
)
