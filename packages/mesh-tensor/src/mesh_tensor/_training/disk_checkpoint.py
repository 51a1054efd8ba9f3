"""Checkpoints on disk, which are loaded if all copies in memory are lost."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DiskCheckpoints", "latest_on_disk", "load_from_disk", "save_to_disk"]

_METADATA = ".metadata"
_log = logging.getLogger("mesh_tensor")


@dataclass(frozen=True)
class DiskCheckpoints:
    """The location and the interval of checkpoints of `torch.distributed.checkpoint`.

    Args:
        folder: A directory that all hosts share.
        every: The number of steps between two checkpoints.
        kept: The number of checkpoints to keep.
    """

    folder: str
    every: int = 1000
    kept: int = 2

    def __post_init__(self) -> None:
        if self.every < 1 or self.kept < 1:
            raise ValueError("every and kept must be at least 1")

    def path(self, step: int) -> Path:
        """Return the directory of the checkpoint of a step."""
        return Path(self.folder, f"step-{step:09d}")


def save_to_disk(disk: DiskCheckpoints, step: int, state: Mapping[str, Any]) -> None:
    """Write a checkpoint; all ranks call this. A full disk is logged and does not end training."""
    try:
        save(dict(state), checkpoint_id=disk.path(step))
    except (CheckpointException, OSError) as error:
        _log.warning("mesh: the checkpoint of step %d was not written: %s", step, error)
        shutil.rmtree(disk.path(step), ignore_errors=True)
        return
    for old in _steps(disk)[: -disk.kept]:
        shutil.rmtree(disk.path(old), ignore_errors=True)


def latest_on_disk(disk: DiskCheckpoints) -> int | None:
    """Return the step of the latest complete checkpoint; None if there is none."""
    return max(_steps(disk), default=None)


def load_from_disk(disk: DiskCheckpoints, step: int, state: dict[str, Any]) -> None:
    """Load a checkpoint into a state of the same structure; all ranks call this."""
    load(state, checkpoint_id=disk.path(step))


def _steps(disk: DiskCheckpoints) -> list[int]:
    # The metadata is written last.
    found = Path(disk.folder).glob(f"step-*/{_METADATA}")
    return sorted(int(path.parent.name.removeprefix("step-")) for path in found)
