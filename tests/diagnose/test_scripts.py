"""Scripts for torchrun that hang, and a rank that is slow."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import distributed

from mesh_core import Actor, endpoint, this_host
from mesh_core.testing import wait_until
from mesh_jobs import run_spmd, setup_torch_distributed
from mesh_telemetry import Hang, SlowRank, Telemetry

SCRIPT = Path(__file__).with_name("script_that_hangs.py")
LIMIT_S = 60.0


class Worker(Actor):
    """A rank whose steps take a given time."""

    def __init__(self) -> None:
        distributed.init_process_group("gloo")
        self.total = torch.zeros(1)

    @endpoint
    def train(self, step_s: list[float], steps: int) -> None:
        """Train with steps of the given time for each rank."""
        mine = step_s[distributed.get_rank()]
        for _ in range(steps):
            # The time of a step.
            threading.Event().wait(mine)
            distributed.all_reduce(self.total)


def test_the_rank_of_a_script_that_hangs_is_named() -> None:
    with Telemetry() as telemetry:
        script = run_spmd(this_host(), SCRIPT, per_host=3)

        def certain() -> Hang | None:
            return next((hang for hang in telemetry.why() if hang.is_certain), None)

        hang = wait_until(certain, LIMIT_S)
        (culprit,) = hang.culprits
        assert (culprit.kind, culprit.rank, culprit.mesh) == ("blocked", 1, SCRIPT.name), str(hang)
        lines = SCRIPT.read_text().splitlines()
        line = next(at for at, text in enumerate(lines, 1) if text.endswith("# hang: script"))
        assert culprit.where == f"{SCRIPT}:{line} in main"
        assert hang.collective is not None
        assert (hang.collective.sequence, hang.collective.ranks) == (37, (0, 2))
        rows = telemetry.query(
            "select rank, count(*) as n from collectives where mesh = $1 group by rank "
            "order by rank",
            [SCRIPT.name],
        )
        counts = [{"rank": rank, "n": n} for rank, n in enumerate((38, 37, 38))]
        assert rows.table.to_pylist() == counts
        script.cancel()


def test_a_script_finds_its_environment_unchanged(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("seen = 'of the user'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, sitecustomize\n"
        "assert sitecustomize.seen == 'of the user'\n"
        "assert os.environ['PYTHONPATH'] == sys.argv[1], os.environ['PYTHONPATH']\n"
        "assert not any('_script_hook' in entry for entry in sys.path), sys.path\n"
        "assert 'mesh_telemetry' not in sys.modules\n"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    assert run_spmd(this_host(), script, [str(tmp_path)], env=env).get(timeout=LIMIT_S) == 0
    with Telemetry():
        assert run_spmd(this_host(), script, [str(tmp_path)], env=env).get(timeout=LIMIT_S) == 0


def test_a_slow_rank_is_named_and_healthy_ranks_are_not() -> None:
    with Telemetry() as telemetry:
        procs = this_host().spawn_procs({"gpus": 3}, name="train")
        setup_torch_distributed(procs)
        workers = procs.spawn("workers", Worker)
        workers.train.call([0.01] * 3, 150).get(timeout=LIMIT_S)
        assert telemetry.slow_ranks() == []
        workers.train.call([0.01, 0.01, 0.0115], 260).get(timeout=LIMIT_S)
        found: list[SlowRank] = telemetry.slow_ranks()
        assert [(one.mesh, one.rank) for one in found] == [("train", 2)]
        assert 0.05 < found[0].excess < 0.3
        procs.stop().get(timeout=LIMIT_S)
