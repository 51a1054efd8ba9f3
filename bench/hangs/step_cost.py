"""What recording the collectives costs a step: `python bench/hangs/step_cost.py`.

Two ranks train steps of 10 ms with four collectives each, in blocks of steps: in turn on a process
group whose collectives are recorded, and on one of the same backend that telemetry does not see.
Both are in the same processes, since two programs differ by more than the cost.
"""

from __future__ import annotations

import statistics
import time
from datetime import timedelta

import torch
from torch import distributed

from mesh_core import Actor, endpoint, this_host
from mesh_jobs import setup_torch_distributed
from mesh_telemetry import Telemetry

RANKS, BLOCKS, STEPS, COLLECTIVES = 2, 60, 50, 4
STEP_S = 0.010


class Trainer(Actor):
    """One rank."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        rank, size = distributed.get_rank(), distributed.get_world_size()
        store = distributed.PrefixStore("bare", distributed.distributed_c10d._get_default_store())
        bare = distributed.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))
        self.groups = {"recorded": distributed.group.WORLD, "bare": bare}
        self.gradients = [torch.zeros(1 << 12) for _ in range(COLLECTIVES)]
        self.weights = torch.randn(192, 192)

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
    def train(self, multiplications: int) -> dict[str, list[float]]:
        """Return the mean duration of a step of each block, in seconds, by group."""
        times: dict[str, list[float]] = {name: [] for name in self.groups}
        for _ in range(BLOCKS):
            for name, group in self.groups.items():
                began = time.perf_counter()
                for _ in range(STEPS):
                    for gradient in self.gradients:
                        for _ in range(multiplications // COLLECTIVES):
                            self.weights @ self.weights
                        group.allreduce([gradient]).wait()
                times[name].append((time.perf_counter() - began) / STEPS)
        return times


def main() -> None:
    with Telemetry() as telemetry, this_host().spawn_procs({"gpus": RANKS}) as procs:
        setup_torch_distributed(procs)
        trainers = procs.spawn("trainers", Trainer)
        multiplications = trainers.slice(gpus=0).multiplications.call_one().get()
        times = trainers.train.call(multiplications).get().values()[0]
        recorded = telemetry.query("select count(*) as n from collectives").table["n"][0].as_py()
    ratios = [one / other for one, other in zip(times["recorded"], times["bare"], strict=True)]
    for name, each in times.items():
        print(f"{name}: {1e3 * statistics.median(each):.3f} ms a step")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"recorded / bare: median {middle:.4f}, quartiles {low:.4f} and {high:.4f}")
    print(f"{recorded} collectives in the table")


if __name__ == "__main__":
    main()
