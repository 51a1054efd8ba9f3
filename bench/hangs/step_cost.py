"""What watching for hangs costs training: `python bench/hangs/step_cost.py --pairs 10`.

Two ranks train steps of 10 ms with four collectives each, in a program with telemetry and in one
without it, one after the other. The table has the duration of a step in both, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

import torch
from torch import distributed

from mesh_core import Actor, endpoint, this_host
from mesh_jobs import setup_torch_distributed
from mesh_telemetry import Telemetry

RANKS, STEPS, WARM_UP, COLLECTIVES = 2, 600, 100, 4
STEP_S = 0.010


class Trainer(Actor):
    """One rank."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        self.gradients = [torch.zeros(1 << 12) for _ in range(COLLECTIVES)]
        self.weights = torch.randn(192, 192)

    def step(self, multiplications: int) -> None:
        for gradient in self.gradients:
            for _ in range(multiplications // COLLECTIVES):
                self.weights @ self.weights
            distributed.all_reduce(gradient)

    @endpoint
    def multiplications(self) -> int:
        """Return how many multiplications fill a step."""
        times = []
        for _ in range(2000):
            began = time.perf_counter()
            self.weights @ self.weights
            times.append(time.perf_counter() - began)
        return int(STEP_S / statistics.median(times))

    @endpoint
    def train(self, multiplications: int) -> float:
        """Return the median duration of a step, in seconds."""
        for _ in range(WARM_UP):
            self.step(multiplications)
        times = []
        for _ in range(STEPS):
            began = time.perf_counter()
            self.step(multiplications)
            times.append(time.perf_counter() - began)
        return statistics.fmean(times)


def run(is_watched: bool, multiplications: int) -> tuple[float, int]:
    """Train in this program; return the duration of a step, and the multiplications in it."""
    with ExitStack() as stack:
        if is_watched:
            stack.enter_context(Telemetry())
        procs = stack.enter_context(this_host().spawn_procs({"gpus": RANKS}))
        setup_torch_distributed(procs)
        trainers = procs.spawn("trainers", Trainer)
        multiplications = multiplications or trainers.slice(gpus=0).multiplications.call_one().get()
        times = trainers.train.call(multiplications).get().values()
        return max(times), multiplications


def measured(is_watched: bool, multiplications: int) -> tuple[float, int]:
    """Train in another program."""
    command = [sys.executable, __file__, "--watched", str(int(is_watched)), str(multiplications)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, used = ran.stdout.split()[-2:]
    return float(seconds), int(used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--watched", type=int, nargs=2, help="for the programs that are measured")
    options = parser.parse_args()
    if options.watched:
        print(*run(*options.watched))
        return
    _, multiplications = measured(False, 0)
    ratios = []
    for pair in range(options.pairs):
        # Which one is first alternates.
        order = (False, True) if pair % 2 else (True, False)
        times = {is_watched: measured(is_watched, multiplications)[0] for is_watched in order}
        ratios.append(times[True] / times[False])
        print(f"{1e3 * times[False]:.3f} ms  {1e3 * times[True]:.3f} ms  {ratios[-1]:.4f}")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"watched / unwatched: median {middle:.4f}, quartiles {low:.4f} and {high:.4f}")


if __name__ == "__main__":
    main()
