"""One process of the pair: executes commands from a socket, with gloo and one torch thread.

Started by torchrun: `python -m torch.distributed.run ... -m bench.spmd.rank ADDRESS`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client
from typing import Any

import torch
import torch.distributed as dist

from bench.affinity import pin_process
from bench.spmd.training import Layers, Sizes, fresh, step, step_of_module


class Rank:
    """The commands; they have the same names as the methods of `Pair`."""

    def __init__(self) -> None:
        self._steps: dict[str, Callable[[], torch.Tensor]] = {}
        self._tensor = torch.empty(0)

    def hold(self, nbytes: int) -> None:
        self._tensor = torch.ones(nbytes // 4)

    def reduce(self) -> float:
        return _seconds(lambda: dist.all_reduce(self._tensor, op=dist.ReduceOp.AVG))

    def clone_and_reduce(self) -> float:
        return _seconds(lambda: dist.all_reduce(self._tensor.clone(), op=dist.ReduceOp.AVG))

    def prepare(self, sizes: Sizes, steps: int) -> dict[str, float]:
        """Create every variant of the training and take some steps of each; return the losses."""
        mine, alone, theirs = fresh(sizes), fresh(sizes), fresh(sizes)
        module = torch.nn.parallel.DistributedDataParallel(Layers(theirs[0]))
        self._steps = {
            "spmd": lambda: step(mine, lambda g: dist.all_reduce(g, op=dist.ReduceOp.AVG)),
            "spmd_alone": lambda: step(alone),
            "ddp": lambda: step_of_module(module, theirs),
        }
        return {name: _last(one, steps) for name, one in self._steps.items()}

    def train(self, way: str, steps: int) -> float:
        return _seconds(lambda: _last(self._steps[way], steps))

    def pin(self, cores: list[int]) -> None:
        pin_process(cores)


def _last(one: Callable[[], torch.Tensor], steps: int) -> float:
    for _ in range(steps - 1):
        one()
    return one().item()


def _seconds(run: Callable[[], Any]) -> float:
    dist.barrier()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    """Execute commands until the connection ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank()
    with Client(sys.argv[1], "AF_UNIX") as connection:
        connection.send(os.environ["RANK"])
        while (asked := connection.recv()) is not None:
            name, arguments = asked
            connection.send(getattr(rank, name)(*arguments))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
