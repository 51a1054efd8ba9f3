"""The training as a script for torchrun: `torchrun ... with_torchrun.py FOLDER SEED`.

Rank 0 writes a snapshot to a file, from which all ranks resume after a restart, as in the tutorial
"Fault-tolerant Distributed Training with torchrun".
"""

import sys
from pathlib import Path

import torch
from kills import SAVE_EVERY, STEPS
from torch import distributed
from training import GPTTraining


def main(folder: str, seed: int) -> None:
    """Train from the snapshot, if there is one."""
    distributed.init_process_group("gloo")
    training = GPTTraining(folder, seed)
    snapshot = Path(folder) / "snapshot.pt"
    first = 0
    if snapshot.exists():
        saved = torch.load(snapshot)
        training.load_state_dict(saved["state"])
        first = saved["step"]
    training.join()
    for step in range(first, STEPS):
        training.train_step(step)
        if (step + 1) % SAVE_EVERY == 0 and training.rank == 0:
            unfinished = snapshot.with_suffix(".new")
            torch.save({"state": training.state_dict(), "step": step + 1}, unfinished)
            unfinished.replace(snapshot)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
