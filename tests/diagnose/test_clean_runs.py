"""Training that does not hang, for which telemetry must not report a hang."""

from __future__ import annotations

import sys

import pytest

from tests.diagnose.test_planted_hangs import reports_of
from tests.hosts.busy import spinning
from tests.hosts.cluster import WorkerCluster
from tools.workspace import ROOT

#: A thousand runs in all. The slow programs run on an idle machine, and every fifth one with
#: processes that compete for its processors.
RUNS, PROGRAMS = 20, 50
STEPS = 60
BUSY = 20
LIMIT_S = 1500.0


@pytest.mark.timeout(120)
def test_training_that_does_not_hang_is_not_reported(cluster: WorkerCluster) -> None:
    check_clean_runs(cluster, 2)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("number", range(PROGRAMS))
def test_no_hang_is_reported_in_a_thousand_runs(
    cluster: WorkerCluster, number: int, outcomes: list[tuple[str, ...]]
) -> None:
    busy = BUSY if number % 5 == 0 else 0
    with spinning(busy):
        check_clean_runs(cluster, RUNS)
    outcomes.append((f"nothing, {RUNS} runs", "-", "-", "-", f"load {busy}", "-"))


def check_clean_runs(cluster: WorkerCluster, runs: int) -> None:
    """Check that no hang is reported for programs that train so many times."""
    cluster.repair()
    arguments = ["-m", "tests.diagnose.clean_runs", str(runs), str(STEPS)]
    arguments += [cluster.keys, *cluster.addresses()]
    ran = cluster.client.run([sys.executable, *arguments], check=False, timeout=LIMIT_S, cwd=ROOT)
    assert ran.stdout.count("TRAINED") == runs, ran.stdout + ran.stderr
    assert not reports_of(ran.stdout), ran.stdout
