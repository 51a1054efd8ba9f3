"""Training on two hosts that does not hang, several times in one program.

`python clean_runs.py RUNS STEPS KEYS ADDRESS ADDRESS` prints `TRAINED` after each run, and each
hang that telemetry reports by mistake.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import tempfile
import time

import torch
from torch import distributed

from mesh_core import (
    Actor,
    Credentials,
    attach_to_workers,
    configure,
    endpoint,
    shutdown_context,
)
from mesh_jobs import setup_torch_distributed
from mesh_telemetry import Telemetry
from tests.diagnose.planted_hangs import RANKS_PER_HOST, Reports

#: How long one rank keeps the others waiting in each run, in seconds: longer than the time after
#: which a rank that neither computes nor reads or writes files is reported.
PAUSE_S = 1.5
BLOCK_BYTES = 4 << 20


class Trainer(Actor):
    """One rank."""

    def __init__(self) -> None:
        distributed.init_process_group("gloo")
        self.rank = distributed.get_rank()
        self.total = torch.zeros(16)

    @endpoint
    def train(self, seed: int, steps: int) -> None:
        """Train steps of a few milliseconds; in one step, one rank makes the others wait."""
        choice = random.Random(seed)
        busy_rank = choice.randrange(distributed.get_world_size())
        busy_step = choice.randrange(4, steps)
        work = choice.choice([self.evaluate, self.write_checkpoint])
        for number in range(steps):
            if self.rank == busy_rank and number == busy_step:
                work()
            compute(choice.uniform(0.001, 0.004))
            self.total += 1
            distributed.all_reduce(self.total)
        distributed.barrier()
        distributed.destroy_process_group()

    def evaluate(self) -> None:
        """Compute while the other ranks wait."""
        compute(PAUSE_S)

    def write_checkpoint(self) -> None:
        """Write to disk while the other ranks wait."""
        until = time.monotonic() + PAUSE_S
        block = bytes(BLOCK_BYTES)
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < until:
                file.seek(0)
                file.write(block)
                file.flush()
                os.fsync(file.fileno())


def compute(seconds: float) -> None:
    """Use a processor."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.randn(16).sum()


def main(runs: str, steps: str, keys: str, *addresses: str) -> None:
    """Train as often as requested, each time with new actors and a new process group."""
    configure(heartbeat_s=1.0, unresponsive_timeout_s=30.0, log_prefix=False)
    logging.getLogger("mesh_telemetry").addHandler(Reports())
    with Telemetry():
        hosts = attach_to_workers(list(addresses), credentials=Credentials.load(keys))
        procs = hosts.spawn_procs({"procs": RANKS_PER_HOST}, name="train").flatten("rank")
        for run in range(int(runs)):
            setup_torch_distributed(procs)
            trainers = procs.spawn("trainers", Trainer)
            trainers.train.call(random.randrange(1 << 30), int(steps)).get()
            print("TRAINED", run, flush=True)
            trainers.stop().get()
        shutdown_context().get()


if __name__ == "__main__":
    main(*sys.argv[1:])
