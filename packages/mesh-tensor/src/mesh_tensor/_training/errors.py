"""Exceptions of fault-tolerant training."""

from __future__ import annotations

from mesh_core import MeshError

__all__ = ["CheckpointCorrupt", "NoCheckpoint", "TrainingFailed"]


class CheckpointCorrupt(MeshError):
    """A checkpoint in memory is damaged or incomplete, and was not loaded."""


class NoCheckpoint(MeshError):
    """No state is left that all ranks could continue from, neither in memory nor on disk."""


class TrainingFailed(MeshError):
    """Training cannot continue; `__cause__` is the last failure.

    The same step has failed repeatedly, or too few ranks remain after the loss of a host.
    """


# Tracebacks show the public name, such as mesh_tensor.training.NoCheckpoint.
for _error in (CheckpointCorrupt, NoCheckpoint, TrainingFailed):
    _error.__module__ = "mesh_tensor.training"
