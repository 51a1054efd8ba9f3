"""The goals of mesh-rdma on one host, and the measurement for each of them.

The floor column contains the baseline of the goal from the same run: a copy of as many bytes in one
process, or a plain socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from bench.goals import Row, Source
from bench.goals_hosts import NO_PEER

RDMA = "mesh_rdma"
PEER_RDMA = "monarch_rdma"
_LONG, _SHORT, _PUSH, _GPU = "rdma.long", "rdma.short", "rdma.push", "rdma_gpu.long"


def _ours(workload: str, metric: str) -> Source:
    return Source(workload, metric, RDMA)


def _long(metric: str, title: str, share: float | None, against: str = "memcpy") -> Row:
    return Row(
        "long", title, "GB/s", _ours(_LONG, metric), floor=_ours(_LONG, against),
        peer=PEER_RDMA, is_rate=True, floor_ratio=share,
    )  # fmt: skip


def _rows() -> Iterator[Row]:
    yield _long("arena_read", "256 MiB read, arena; floor: memcpy", 0.85)
    yield _long("arena_write", "  write", None)
    yield _long("attach_read", "256 MiB read, attach; floor: memcpy", 0.6)
    yield _long("attach_alone_read", "  by one thread, in pieces of 256 KiB", 0.35)
    yield _long("attach_write", "  write", None)
    yield _long("unix_read", "256 MiB read, unix; floor: memcpy", None)
    yield _long("tcp_read", "256 MiB read, TCP; floor: memcpy", 0.2)
    yield _long("tcp_write", "  write", None)
    yield _long("tcp_read", "  read; floor: a bare stream", 0.9, "stream")
    for way, limit, ratio in (("arena", 5.0, None), ("attach", 10.0, None), ("tcp", None, 3.0)):
        yield Row(
            "short", f"8 B read, {way}, p50; floor: bare ping-pong", "us",
            _ours(_SHORT, f"{way}_p50"), floor=_ours(_SHORT, "ping_pong_p50"),
            peer=PEER_RDMA, limit=limit, floor_ratio=ratio, is_placed=True,
        )  # fmt: skip
    yield Row(
        "push", "256 MiB in view of 8 procs; floor: a copy and 8 maps", "ms",
        _ours(_PUSH, "push"), floor=_ours(_PUSH, "copy_and_maps"),
        peer=NO_PEER, floor_ratio=1.3,
    )  # fmt: skip


def _weights_rows() -> Iterator[Row]:
    """Yield the rows about weights: from trainers to generators, and from one to many."""
    cuts = {"columns": "rows to columns", "grid": "rows to 2 x 2", "halves": "rows to halves"}
    for kind, share in (("arena", 0.5), ("plain", None)):
        for metric, words in cuts.items():
            memory = "" if kind == "arena" else ", attach"
            yield Row(
                "weights", f"1 GiB, 4 to 4 procs, {words}{memory}; floor: memcpy", "GB/s",
                _ours("rdma_spread.reshard", f"{kind}_{metric}"),
                floor=_ours("rdma_spread.reshard", "memcpy"),
                peer=NO_PEER, is_rate=True, floor_ratio=share,
            )  # fmt: skip
    for metric, title in (
        ("spread", "256 MiB to 8 procs, a copy each, in sum"),
        ("replicas", "256 MiB to where 8 procs see it"),
    ):
        yield Row(
            "spread", f"{title}; floor: memcpy", "GB/s", _ours("rdma_spread.to_many", metric),
            floor=_ours("rdma_spread.to_many", "memcpy"),
            peer=NO_PEER, is_rate=True, floor_ratio=0.75 if metric == "replicas" else None,
        )  # fmt: skip


def _gpu_rows() -> Iterator[Row]:
    """Yield the rows about device memory, if a device is available."""
    if not Path("/dev/nvidiactl").exists() or find_spec("torch") is None:
        return
    for metric, title in (
        ("cuda_read", "256 MiB from device to device, CUDA IPC"),
        ("staged_read", "  through the processor's memory"),
        ("host_read", "  from the processor's memory"),
    ):
        yield Row(
            "gpu", f"{title}; floor: copy on the device", "GB/s", _ours(_GPU, metric),
            floor=_ours(_GPU, "device_copy"), peer=NO_PEER, is_rate=True,
            floor_ratio=0.8 if metric == "cuda_read" else None,
        )  # fmt: skip


ROWS: tuple[Row, ...] = (*_rows(), *_weights_rows(), *_gpu_rows())
