"""Programs that train on two hosts until the memory of one rank exceeds its limit.

`python planted_deaths.py DEATH SEED KEYS ADDRESS ADDRESS` runs one of them, and prints how the
death is reported as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

from mesh_core import (
    Actor,
    Credentials,
    ProcDied,
    attach_to_workers,
    configure,
    endpoint,
    shutdown_context,
)

RANKS_PER_HOST = 2
#: The limit of each process, by the name of the death; other deaths have no limit.
LIMITS = dict.fromkeys(("growth", "huge", "loader", "shared"), "600MiB")
LIMITS["kernel_below_limit"] = "4GiB"
LIMIT_S = 30.0
MIB = 1 << 20


class Samples(Dataset[int]):
    """Samples, each of which leaks memory."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, at: int) -> int:
        self.kept.append(b"x" * (20 * MIB))
        return at


class Trainer(Actor):
    """One rank."""

    @endpoint
    def train(self, death: str) -> None:
        """Use more and more memory."""
        kept: list[object] = []
        if death == "huge":
            torch.ones(1 << 31, dtype=torch.uint8)  # death: huge
        if death == "loader":
            list(DataLoader(Samples(), batch_size=None, num_workers=1))  # death: loader
        while death == "shared":
            kept.append(torch.ones(20 * MIB, dtype=torch.uint8).share_memory_())  # death: shared
        while True:
            kept.append(torch.ones(MIB, dtype=torch.uint8))  # death: growth

    @endpoint
    def ready(self) -> None:
        """Return as soon as the rank runs."""


def plan(seed: int) -> int:
    """Return the rank that dies."""
    return random.Random(seed).randrange(4)


def main(death: str, seed: str, keys: str, *addresses: str) -> None:
    """Run a program until the rank has died."""
    configure(heartbeat_s=1.0, stop_grace_s=0.1)
    hosts = attach_to_workers(list(addresses), credentials=Credentials.load(keys))
    procs = hosts.spawn_procs(
        {"procs": RANKS_PER_HOST}, name="train", memory_limit=LIMITS.get(death)
    ).flatten("rank")
    trainers = procs.spawn("trainers", Trainer, restart="temporary")
    trainers.ready.call().get()
    began = time.monotonic()
    try:
        trainers[plan(int(seed))].train.call_one(death).get(timeout=LIMIT_S)
    except ProcDied as died:
        about = {"rank": died.rank, "host": died.host, "reason": died.reason}
        print("DIED", json.dumps({**about, "after_s": time.monotonic() - began}), flush=True)
    shutdown_context().get()


if __name__ == "__main__":
    main(*sys.argv[1:])
