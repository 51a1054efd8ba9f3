"""Training with gloo in which one rank hangs.

`torchrun --nproc-per-node 4 bench/hangs/training.py HANG` runs it.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading

import torch
from torch import distributed

RANKS = 4
CULPRIT = 2
TIMEOUT = datetime.timedelta(seconds=10)
#: How long the caller waits for the ranks, in seconds.
LIMIT_S = 40.0


def set_environment(rank: int, port: int) -> None:
    """Set the variables that torchrun sets for a rank."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(place, RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))


def train(hang: str) -> None:
    """Train until the culprit hangs.

    Args:
        hang: `lock`, `stopped` or `shape`.
    """
    distributed.init_process_group("gloo", timeout=TIMEOUT)
    total = torch.zeros(4)
    for step in range(100):
        # The time of a step.
        threading.Event().wait(0.01)
        if distributed.get_rank() == CULPRIT and step == 37:
            if hang == "lock":
                threading.Event().wait()
            if hang == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if hang == "shape":
                distributed.all_reduce(torch.zeros(7))
        distributed.all_reduce(total)


if __name__ == "__main__":
    train(sys.argv[1])
