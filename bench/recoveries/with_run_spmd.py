"""The script for torchrun, started by Mesh: `python with_run_spmd.py FOLDER SEED`."""

import sys
from pathlib import Path

from kills import KILLS, RANKS

from mesh_core import this_host
from mesh_jobs import run_spmd

if __name__ == "__main__":
    script = Path(__file__).with_name("with_torchrun.py")
    run = run_spmd(
        this_host(), script, sys.argv[1:], per_host=RANKS, max_restarts=KILLS, check=True
    )
    run.get()
