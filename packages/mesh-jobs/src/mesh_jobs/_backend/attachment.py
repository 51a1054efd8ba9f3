"""Hosts that a job attaches to without allocating them."""

from __future__ import annotations

from dataclasses import dataclass

from mesh_core import Credentials
from mesh_jobs._spec import MeshSpec

__all__ = ["Attachment"]


@dataclass(frozen=True)
class Attachment:
    """Meshes that a job attaches to without allocating them.

    Attributes:
        meshes: The meshes with their current sizes.
        credentials: Credentials that the workers of the meshes trust.
    """

    meshes: tuple[MeshSpec, ...]
    credentials: Credentials
