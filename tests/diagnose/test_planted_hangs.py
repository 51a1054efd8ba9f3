"""Planted hangs of training on two hosts, whose culprit telemetry has to name."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.planted_hangs import plan
from tests.hosts.cluster import WorkerCluster
from tests.hosts.world.faults import Fault
from tools.workspace import ROOT

PROGRAM = Path(__file__).with_name("planted_hangs.py")
LIMIT_S = 100.0
#: How long after the culprit hangs it has to be named, in seconds.
REPORT_S = 2.0
SEEDS = (1, pytest.param(2, marks=pytest.mark.slow))
#: The same if a whole host does not reply.
HOST_REPORT_S = 5.0


@dataclass(frozen=True)
class Planted:
    """A planted hang.

    Attributes:
        name: The argument of the program.
        kind: The kind that has to be reported.
        mark: The comment at the line that has to be named; the name of the hang by default.
        mesh: The mesh of the culprit.
    """

    name: str
    kind: str
    mark: str | None = None
    mesh: str = "train"


HANGS = [
    Planted("returns", "missing_call"),
    Planted("order", "different_order", "order"),
    Planted("two_groups", "different_order", "two_groups"),
    Planted("shape", "shape_mismatch", "shape"),
    Planted("own_loader", "data_loader", "own_loader"),
    Planted("loader_workers", "data_loader", "loader_workers"),
    Planted("stopped", "stopped"),
    Planted("lock", "blocked", "lock"),
    Planted("pipe", "blocked", "pipe"),
    Planted("deadlock", "deadlock", "deadlock"),
    Planted("other_actor", "blocked", "other_actor", "store"),
]
#: Variants of other hangs, which are not tested at every change.
SLOW = (
    "returns", "order", "own_loader", "loader_workers", "two_groups", "shape", "lock", "pipe",
    "other_actor",
)  # fmt: skip


def line_of(mark: str) -> int:
    """Return the number of the line of the program with a mark."""
    lines = PROGRAM.read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# hang: {mark}")]
    return found


def reports_of(stdout: str) -> list[dict[str, Any]]:
    """Return the reports in the output of a program."""
    lines = [line for line in stdout.splitlines() if line.startswith("REPORT ")]
    return [json.loads(line.removeprefix("REPORT ")) for line in lines]


def run(cluster: WorkerCluster, hang: str, seed: int) -> tuple[float, list[dict[str, Any]], str]:
    """Run a program; return when its culprit hung, the reports, and its output."""
    cluster.repair()
    arguments = [hang, str(seed), cluster.keys, *cluster.addresses()]
    ran = cluster.client.run(
        [sys.executable, str(PROGRAM), *arguments], check=False, timeout=LIMIT_S, cwd=ROOT
    )
    output = ran.stdout + ran.stderr
    hung = [line.split() for line in ran.stdout.splitlines() if line.startswith("HANGS ")]
    assert hung, output
    return float(hung[0][1]), reports_of(ran.stdout), output


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(one, id=one.name, marks=pytest.mark.slow if one.name in SLOW else ())
        for one in HANGS
    ],
)
def test_the_culprit_is_named(
    cluster: WorkerCluster,
    planted: Planted,
    seed: int,
    limit_times: int,
    outcomes: list[tuple[str, ...]],
) -> None:
    hung_at, reports, output = run(cluster, planted.name, seed)
    assert reports, output
    first = reports[0]
    (culprit,) = first["culprits"]
    assert culprit["kind"] == planted.kind, output
    assert culprit["mesh"] == planted.mesh, output
    rank, _ = plan(seed)
    if planted.mesh == "train":
        assert culprit["rank"] == rank, output
        assert culprit["host"] == ("w0" if rank < 2 else "w1"), output
    where = culprit["where"].rpartition(" in ")[0].rpartition("/")[2]
    if planted.mark is not None:
        assert where == f"{PROGRAM.name}:{line_of(planted.mark)}", output
    passed_s = first["at"] - hung_at
    assert passed_s < REPORT_S * limit_times, output
    who = f"rank {culprit['rank']} of {culprit['mesh']}"
    outcomes.append((planted.name, str(seed), who, culprit["kind"], where, f"{passed_s:.2f} s"))


def with_fault(cluster: WorkerCluster, inject: Callable[[], Fault]) -> tuple[float, dict[str, Any]]:
    """Inject a fault while ranks train; return after how many seconds it is reported, and how."""
    cluster.repair()
    arguments = ["", "1", cluster.keys, *cluster.addresses()]
    program = cluster.client.popen(
        [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert program.stdout is not None
    try:
        for line in program.stdout:
            if line.startswith("TRAINS"):
                break
        output = []
        with inject():
            began = time.time()
            for line in program.stdout:
                output.append(line)
                if line.startswith("REPORT "):
                    (report,) = reports_of(line)
                    return report["at"] - began, report
        raise AssertionError(f"nothing was reported: {''.join(output)}")
    finally:
        program.kill()
        program.wait()


@pytest.mark.timeout(120)
def test_a_link_between_hosts_that_drops_all_packets_is_named(
    cluster: WorkerCluster, limit_times: int, outcomes: list[tuple[str, ...]]
) -> None:
    one, other = cluster.hosts
    passed_s, report = with_fault(cluster, lambda: cluster.world.faults.drop(one, other))
    assert report["kind"] == "link", report
    assert passed_s < HOST_REPORT_S * limit_times, report
    outcomes.append(("link", "-", "all ranks", "link", "-", f"{passed_s:.2f} s"))


@pytest.mark.timeout(120)
def test_the_ranks_of_a_host_that_does_not_reply_are_named(
    cluster: WorkerCluster, limit_times: int, outcomes: list[tuple[str, ...]]
) -> None:
    passed_s, report = with_fault(cluster, lambda: cluster.world.faults.pause(cluster.hosts[1]))
    assert report["culprits"][0]["kind"] == "lost", report
    assert report["culprits"][0]["host"] == "w1", report
    assert report["culprits"][0]["rank"] in (2, 3), report
    assert passed_s < HOST_REPORT_S * limit_times, report
    outcomes.append(("paused host", "-", "ranks of w1", "lost", "-", f"{passed_s:.2f} s"))
