"""The training with torchft: `python with_torchft.py HEARTBEAT_TIMEOUT_MS FOLDER SEED`.

Each rank is a replica group of one process. After a kill, the other groups continue in a smaller
quorum. The killed process is started again and copies the state of another group.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from kills import RANKS, Journal, recoveries_of

#: torchrun checks its workers at the same interval.
POLL_S = 0.1
GLOO_TIMEOUT = timedelta(seconds=10)


def train(folder: str, seed: int, rank: int, lighthouse: str) -> None:
    """Train as one replica group until the process is killed."""
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    from training import GPTTraining

    training = GPTTraining(folder, seed)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=GLOO_TIMEOUT),
        load_state_dict=training.load_state_dict,
        state_dict=training.state_dict,
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"rank{rank}",
    )
    training.rank, training.journal = rank, Journal(folder, rank, seed)
    training.wrapped = DistributedDataParallel(manager, training.model)
    optimizer = Optimizer(manager, training.optimizer)
    while True:
        step = manager.current_step()
        training.journal.begin(step)
        optimizer.zero_grad()
        training.loss(step).backward()
        optimizer.step()
        # A group that joins copies the current step; a step is not committed after a failure.
        if manager.current_step() > step:
            training.journal.end(manager.current_step() - 1)


def supervise(heartbeat_timeout_ms: int, folder: str, seed: int) -> None:
    """Start all replica groups, and restart each killed one until all have recovered."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="[::]:0",
        # Both values are from the README of torchft.
        join_timeout_ms=10_000,
        quorum_tick_ms=100,
        min_replicas=1,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
    )
    command = [sys.executable, __file__, folder, str(seed)]

    def start(rank: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, str(rank), lighthouse.address()])

    groups = [start(rank) for rank in range(RANKS)]
    try:
        while not has_recovered(folder, seed):
            time.sleep(POLL_S)
            for rank, group in enumerate(groups):
                if group.poll() is not None:
                    groups[rank] = start(rank)
    finally:
        for group in groups:
            group.kill()
        for group in groups:
            group.wait()
        lighthouse.shutdown()


def has_recovered(folder: str, seed: int) -> bool:
    """Return whether all kills have happened, and all ranks have trained new steps since."""
    with suppress(ValueError):
        recoveries_of(Path(folder), seed)
        return True
    return False


if __name__ == "__main__":
    if len(sys.argv) == 5:
        train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        supervise(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
