"""The training that continues in place: `python with_mesh.py FOLDER SEED`."""

import sys

from kills import RANKS, STEPS
from training import GPTTraining

from mesh_core import this_host
from mesh_tensor.training import FaultTolerantTraining

if __name__ == "__main__":
    procs = this_host().spawn_procs({"gpus": RANKS})
    with FaultTolerantTraining(procs, GPTTraining, sys.argv[1], int(sys.argv[2])) as training:
        training.run(STEPS)
