"""A minimal training loop; with torch if it is installed and requested.

The rank comes from the variables of torchrun or of SLURM.
"""

from __future__ import annotations

import os
import sys

import numpy as np


def main() -> None:
    """Fit a line and print each step."""
    rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
    if "torch" in sys.argv[1:]:
        import torch

        torch.set_num_threads(1)
    random = np.random.default_rng(rank)
    x = random.normal(size=(256, 8))
    y = x @ np.arange(8.0)
    w = np.zeros(8)
    for step in range(3):
        error = x @ w - y
        w -= 0.1 * (x.T @ error) / len(x)
        print(f"step {step} rank {rank} loss {float(error @ error) / len(x):.4f}", flush=True)


if __name__ == "__main__":
    main()
