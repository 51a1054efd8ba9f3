"""The time until the first line of training for a new user of a cluster."""

from __future__ import annotations

import sys

from bench.drivers.mesh_jobs import JobsDriver
from bench.record import Recorder
from bench.scale import Scale

_MESH = (sys.executable, "-c", "from mesh_jobs._cli.main import main; main()")
_NODES = 2


def slurm(driver: JobsDriver, scale: Scale, record: Recorder) -> None:
    """Run a script on two nodes with `srun`, on new hosts of a job, on the same hosts, and inside.

    The ways alternate, so that a noisy minute affects all of them.
    """
    site = driver.site()
    srun = ["srun", f"--nodes={_NODES}", "--ntasks-per-node=1", sys.executable, "-u", "train.py"]
    try:
        for _ in range(1 + scale.casts):
            record.value("srun", site.first_line(srun), "s")
            applied = site.seconds([*_MESH, "apply"])
            ran = site.first_line([*_MESH, "spmd", "train.py"])
            record.value("apply", applied, "s")
            record.value("fresh", applied + ran, "s")
            record.value("again", site.first_line([*_MESH, "spmd", "train.py"]), "s")
            record.value("kill", site.seconds([*_MESH, "kill"]), "s")
            record.value("inside", site.first_line([*_MESH, "run", "train.py"]), "s")
            record.value("kill", site.seconds([*_MESH, "kill"]), "s")
    finally:
        site.close()
