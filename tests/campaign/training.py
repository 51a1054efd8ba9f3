"""The training of a campaign: the example, with faults that its ranks inject."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

import torch
from torch import distributed

from mesh_tensor.testing import damage_checkpoints
from tools.workspace import ROOT

# The example imports a module from its folder.
sys.path.insert(0, str(ROOT / "examples"))

from fault_tolerant import GPTTraining

MIB = 1 << 20
#: More than the limit of the cgroup into which a rank is put.
GROWTH_MIB = 600


class FaultyTraining(GPTTraining):
    """Injects the fault that a file in a shared folder requests of its rank, once.

    Args:
        folder: The folder. `RANK.fault` contains the name of the fault.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def train_step(self, step: int) -> float:
        request = self.folder / f"{distributed.get_rank()}.fault"
        if request.exists():
            fault = request.read_text()
            request.unlink()
            FAULTS[fault](self)
        return super().train_step(step)


def segfault(training: FaultyTraining) -> None:
    """Read from address 0."""
    ctypes.string_at(0)


def stop(training: FaultyTraining) -> None:
    """Stop the process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hang(training: FaultyTraining) -> None:
    """Wait forever, while the other ranks are in a collective."""
    threading.Event().wait()


def hang_in_collective(training: FaultyTraining) -> None:
    """Receive a message that no rank sends."""
    following = (distributed.get_rank() + 1) % distributed.get_world_size()
    distributed.recv(torch.zeros(1), following)


def raise_exception(training: FaultyTraining) -> None:
    """Raise an exception of the program."""
    raise RuntimeError("bad sample")


def grow(training: FaultyTraining) -> None:
    """Use memory until the kernel kills the process."""
    kept = [torch.ones(MIB, dtype=torch.uint8) for _ in range(GROWTH_MIB)]
    raise RuntimeError(f"{len(kept)} MiB did not exceed the limit")


def damage(training: FaultyTraining) -> None:
    """Change bits of all checkpoints in this process, and let the following rank crash."""
    damage_checkpoints()
    following = (distributed.get_rank() + 1) % distributed.get_world_size()
    (training.folder / f"{following}.fault").write_text("kill")


def kill(training: FaultyTraining) -> None:
    """End the process by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "kill": kill,
    "segfault": segfault,
    "stop": stop,
    "hang": hang,
    "hang_in_collective": hang_in_collective,
    "exception": raise_exception,
    "memory": grow,
    "damaged_copies": damage,
}
