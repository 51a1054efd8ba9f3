"""The goals of mesh-core on one host, and the measurement for each of them.

Goals are ratios, measured in one interleaved pass. A time never fails a check: the table only shows
whether it was met. Only the two counts of a call are checked (`run.py counts --check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

OURS = "mesh"
PEER = "monarch"
#: The peer with a polling period for dead processes of one second instead of ten.
PEER_POLLING_1S = "monarch_polling_1s"


@dataclass(frozen=True)
class Source:
    """The source of a number: the workload of a runner and a metric that it prints."""

    workload: str
    metric: str
    driver: str = OURS


@dataclass(frozen=True)
class Row:
    """A row of the table with its goal."""

    #: The name with which `--only` selects it.
    id: str
    title: str
    unit: str
    source: Source
    floor: Source | None = None
    #: The driver in the column of the peer.
    peer: str = PEER
    #: Whether more is better (a rate) or less (everything else).
    is_rate: bool = False
    #: The goal: at least this many times better than the peer.
    peer_gain_min: float | None = None
    #: The goal: at most this many times the floor; for a rate, at least this share of it.
    floor_ratio: float | None = None
    #: The goal: at most this value; for a rate, at least.
    limit: float | None = None
    #: The goal: at most `own_ratio` times another figure of Mesh; for a rate, at least.
    own: Source | None = None
    own_ratio: float | None = None
    #: Whether it is also measured with everything pinned to one core.
    is_placed: bool = False
    #: Whether a miss fails a check.
    is_required: bool = False

    @property
    def placements(self) -> tuple[str, ...]:
        """The placements in which this row is measured."""
        return ("pinned", "plain") if self.is_placed else ("plain",)

    def goal(self) -> str:
        """Return the goal as text, or an empty string if the row only explains another."""
        parts = []
        if self.peer_gain_min is not None:
            parts.append(f">= {self.peer_gain_min:g}x peer")
        if self.floor_ratio is not None:
            parts.append(f"{'>=' if self.is_rate else '<='} {self.floor_ratio:g}x floor")
        if self.limit is not None:
            parts.append(f"{'>=' if self.is_rate else '<='} {self.limit:g} {self.unit}".strip())
        if self.own is not None:
            parts.append(
                f"{'>=' if self.is_rate else '<='} {self.own_ratio:g}x our {self.own.metric}"
            )
        return ", ".join(parts)


def _floor(driver: str, workload: str, metric: str) -> Source:
    return Source(workload, metric, f"floors.{driver}")


def _latency_rows() -> Iterator[Row]:
    sync, awaited = "latency.sync", "latency.async_client"
    yield Row(
        "sync", "sync call_one, p50", "us", Source(sync, "p50"),
        floor=_floor("socketpair", sync, "p50"),
        peer_gain_min=12, floor_ratio=2.5, is_placed=True,
    )  # fmt: skip
    yield Row(
        "sync", "  p99", "us", Source(sync, "p99"),
        floor=_floor("socketpair", sync, "p99"), is_placed=True,
    )  # fmt: skip
    yield Row(
        "sync", "  CPU, client + worker", "us", Source(sync, "cpu"),
        floor=_floor("socketpair", sync, "cpu"), is_placed=True,
    )  # fmt: skip
    yield Row(
        "async", "asyncio client, p50", "us", Source(awaited, "p50"),
        floor=_floor("streams", awaited, "p50"),
        peer_gain_min=6, floor_ratio=2.0, is_placed=True,
    )  # fmt: skip
    yield Row(
        "async", "  CPU, client + worker", "us", Source(awaited, "cpu"),
        floor=_floor("streams", awaited, "cpu"), is_placed=True,
    )  # fmt: skip
    yield Row(
        "counts", "context switches per sync call", "", Source("anatomy.sync", "switches"),
        floor=_floor("socketpair", "anatomy.sync", "switches"),
        limit=6, is_placed=True, is_required=True,
    )  # fmt: skip
    yield Row(
        "counts", "system calls per sync call", "", Source("anatomy.sync", "system_calls"),
        floor=_floor("socketpair", "anatomy.sync", "system_calls"),
        limit=12, is_placed=True, is_required=True,
    )  # fmt: skip
    yield Row(
        "a2a", "actor to actor, p50", "us", Source("actor_to_actor.sync", "p50"),
        floor=_floor("socketpair", "actor_to_actor.sync", "p50"),
        peer_gain_min=12, floor_ratio=3.0, is_placed=True,
    )  # fmt: skip


def _throughput_rows() -> Iterator[Row]:
    workload = "throughput.sync"
    yield Row(
        "pipelined", "pipelined calls, one worker", "/s", Source(workload, "pipelined"),
        floor=_floor("socketpair", workload, "pipelined"),
        is_rate=True, peer_gain_min=20, floor_ratio=0.6,
    )  # fmt: skip
    yield Row(
        "one-way", "one-way messages", "/s", Source(workload, "one_way"),
        floor=_floor("socketpair", workload, "one_way"),
        is_rate=True, peer_gain_min=20, limit=100_000,
    )  # fmt: skip
    yield Row(
        "concurrent", "100 concurrent calls of an event loop", "/s",
        Source("throughput.concurrent", "concurrent"),
        is_rate=True, own=Source(workload, "pipelined"), own_ratio=0.6,
    )  # fmt: skip
    yield Row(
        "map", "items mapped over 4 actors", "/s", Source("throughput.mapped", "mapped"),
        floor=_floor("process_pool", "throughput.mapped", "mapped"),
        is_rate=True, floor_ratio=1.0,
    )  # fmt: skip


def _mesh_rows() -> Iterator[Row]:
    yield Row(
        "mesh", "mesh call of {procs} procs, per actor", "us",
        Source("mesh_call.sync", "per_actor_p50"),
        floor=_floor("socketpair", "mesh_call.sync", "per_actor_p50"), peer_gain_min=10,
    )  # fmt: skip
    yield Row(
        "mesh", "  CPU of all processes, per actor", "us",
        Source("mesh_call.sync", "cpu_per_actor"),
        floor=_floor("socketpair", "mesh_call.sync", "cpu_per_actor"),
    )  # fmt: skip
    yield Row(
        "spawn", "spawn {procs} procs, ready to answer", "s", Source("spawn.sync", "ready"),
        floor=_floor("children", "spawn.sync", "ready"), peer_gain_min=10, floor_ratio=1.5,
    )  # fmt: skip
    yield Row(
        "spawn", "tear {procs} procs down", "s", Source("spawn.sync", "tear_down"),
        floor=_floor("children", "spawn.sync", "tear_down"), peer_gain_min=5,
    )  # fmt: skip
    yield Row(
        "memory", "memory per idle worker (PSS)", "MiB", Source("spawn.sync", "pss"),
        floor=_floor("children", "spawn.sync", "pss"), limit=12,
    )  # fmt: skip


def _payload_rows() -> Iterator[Row]:
    echo, floor = "payload.echo", "payload.echo_bytes"
    shared = _floor("shared_mapping", "payload.fill_and_read", "filled_and_read_64MB_p50")
    three_copies = _floor("shared_mapping", "payload.fill_and_read", "three_copies_64MB_p50")
    yield Row(
        "echo-1kb", "1 KB echo, bytes", "us", Source(echo, "bytes_1KB_p50"),
        floor=_floor("socketpair", floor, "bytes_1KB_p50"),
    )  # fmt: skip
    for kind in ("bytes", "numpy"):
        yield Row(
            "echo-1mb", f"1 MB echo, {kind}", "us", Source(echo, f"{kind}_1MB_p50"),
            floor=_floor("socketpair", floor, f"{kind}_1MB_p50"), peer_gain_min=5,
        )  # fmt: skip
    yield Row(
        "echo-64mb", "64 MB echo, numpy", "us", Source(echo, "numpy_64MB_p50"),
        floor=shared, peer_gain_min=12, floor_ratio=1.3,
    )  # fmt: skip
    yield Row(
        "echo-64mb", "64 MB echo, bytes", "us", Source(echo, "bytes_64MB_p50"),
        floor=shared, floor_ratio=3.0,
    )  # fmt: skip
    yield Row(
        "echo-64mb", "  numpy, answer read once; floor: 3 copies", "us",
        Source(echo, "numpy_64MB_and_read_p50"), floor=three_copies,
    )  # fmt: skip
    yield Row(
        "cast", "64 MB cast to {procs} procs", "us", Source("payload.cast", "numpy_64MB_p50"),
        own=Source(echo, "numpy_64MB_p50"), own_ratio=2.0,
    )  # fmt: skip
    yield Row(
        "cast", "  each proc reads all of it", "us",
        Source("payload.cast", "numpy_64MB_and_read_p50"),
    )  # fmt: skip
    for metric, title in (
        ("receiver_can_write", "what arrives is writable"),
        ("sender_is_spared", "  and the sender does not see it"),
        ("answer_can_be_written", "  so is what comes back"),
        ("answers_are_apart", "  and no other answer changes"),
    ):
        yield Row(
            "isolation", title, "", Source("payload.isolation", metric), is_rate=True, limit=1
        )


def _failure_and_footprint_rows() -> Iterator[Row]:
    yield Row(
        "failure", "SIGKILL until the call raises, p50", "ms",
        Source("failure.sync", "detect_p50"),
        floor=_floor("socketpair", "failure.sync", "detect_p50"), limit=10,
    )  # fmt: skip
    yield Row(
        "failure", "  peer told to poll every second", "ms",
        Source("failure.sync", "detect_p50"), peer=PEER_POLLING_1S,
    )  # fmt: skip
    yield Row(
        "failure", "SIGKILL until the call raises, p99", "ms",
        Source("failure.sync", "detect_p99"),
        floor=_floor("socketpair", "failure.sync", "detect_p99"), limit=50,
    )  # fmt: skip
    yield Row(
        "import", "import, CPU", "ms", Source("footprint.imports", "import_cpu"),
        floor=Source("footprint.imports", "import_cpu", "bare"), limit=60,
    )  # fmt: skip
    yield Row("size", "wheel", "MB", Source("footprint.sizes", "wheel"), limit=5)
    yield Row(
        "size", "installed with dependencies", "MB",
        Source("footprint.sizes", "installed_with_dependencies"), limit=15,
    )  # fmt: skip


ROWS: tuple[Row, ...] = (
    *_latency_rows(),
    *_throughput_rows(),
    *_mesh_rows(),
    *_payload_rows(),
    *_failure_and_footprint_rows(),
)

#: Workloads whose results do not change from round to round.
ONCE = ("anatomy.sync", "payload.isolation", "footprint.sizes")
