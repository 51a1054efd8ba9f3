"""The rank of a command in its environment and in the names of its files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["rank_environment", "rank_folder", "rank_label"]


def rank_environment(place: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, str]:
    """Return `MESH_RANK_<DIM>` and `MESH_SIZE_<DIM>` for each dimension."""
    variables = {}
    for label, size in sizes.items():
        name = re.sub(r"\W", "_", label).upper()
        variables[f"MESH_RANK_{name}"] = str(place[label])
        variables[f"MESH_SIZE_{name}"] = str(size)
    return variables


def rank_label(mesh: str, place: Mapping[str, int]) -> str:
    """Return a human-readable name of a rank, such as `trainers hosts=0 gpus=3`."""
    return " ".join([mesh, *(f"{label}={at}" for label, at in place.items())])


def rank_folder(root: Path, mesh: str, place: Mapping[str, int]) -> Path:
    """Return the folder of a rank, such as `root/trainers/hosts-0/gpus-3`."""
    parts = [mesh, *(f"{label}-{at}" for label, at in place.items())]
    return root.joinpath(*(part.replace("/", "_") for part in parts))
