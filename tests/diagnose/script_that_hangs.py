"""A script for torchrun, in which rank 1 hangs before its 38th step."""

from __future__ import annotations

import threading

import torch
from torch import distributed


def main() -> None:
    """Train."""
    distributed.init_process_group("gloo")
    total = torch.zeros(1)
    for step in range(100):
        # The time of a step.
        threading.Event().wait(0.01)
        if distributed.get_rank() == 1 and step == 37:
            threading.Event().wait()  # hang: script
        distributed.all_reduce(total)


if __name__ == "__main__":
    main()
