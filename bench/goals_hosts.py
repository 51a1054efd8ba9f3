"""The goals of mesh-core over several hosts, and the measurement for each of them.

The floor column contains the baseline of the goal from the same run: the same call on one host, one
TLS connection, or eight processes of one host.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.goals import OURS, Row, Source

#: Workers behind TCP and mutual TLS on the loopback interface.
TLS = "mesh_tls"
#: Workers on emulated hosts, which are namespaces.
HOSTS = "mesh_hosts"
#: The peer cannot run in this setup.
NO_PEER = ""


def _across(metric: str, workload: str) -> Source:
    return Source(f"across.{workload}", metric, HOSTS)


def _rows() -> Iterator[Row]:
    sync, stream = "latency.sync", "throughput.sync"
    yield Row(
        "tls", "call over TCP+TLS, p50; floor: unix socket", "us", Source(sync, "p50", TLS),
        floor=Source(sync, "p50", OURS), peer=NO_PEER, floor_ratio=2.5, is_placed=True,
    )  # fmt: skip
    yield Row(
        "tls", "pipelined calls over TCP+TLS; floor: unix socket", "/s",
        Source(stream, "pipelined", TLS), floor=Source(stream, "pipelined", OURS),
        peer=NO_PEER, is_rate=True, floor_ratio=0.5,
    )  # fmt: skip
    for name, words in (("1gbit", "1 Gbit/s"), ("unshaped", "unshaped")):
        yield Row(
            "cast", f"100 MB cast to 4 x 4, {words}: busiest link, of the body", "x",
            _across(f"link_{name}", "cast"), peer=NO_PEER, limit=1.02,
        )  # fmt: skip
        yield Row(
            "cast", "  wall; floor: one TLS stream", "s", _across(f"cast_{name}", "cast"),
            floor=_across(f"stream_{name}", "cast"), peer=NO_PEER, floor_ratio=1.3,
        )  # fmt: skip
    yield Row(
        "gather", "no-op on 8 x 8, p50; floor: 1 x 8", "us", _across("8_p50", "gather"),
        floor=_across("1_p50", "gather"), peer=NO_PEER, floor_ratio=3.0,
    )  # fmt: skip
    yield Row(
        "gather", "  CPU of all processes for one of them", "us", _across("8_cpu", "gather"),
        floor=_across("1_cpu", "gather"), peer=NO_PEER,
    )  # fmt: skip
    yield Row(
        "kill", "SIGKILL on another host until the call raises, p50", "ms",
        _across("detect_p50", "kill"), peer=NO_PEER, limit=20,
    )  # fmt: skip
    yield Row(
        "power-cut", "power cut until HostDied (heartbeat 1 s)", "s",
        _across("host_died", "power_cut"), peer=NO_PEER, limit=3.5,
    )  # fmt: skip


ROWS: tuple[Row, ...] = tuple(_rows())
