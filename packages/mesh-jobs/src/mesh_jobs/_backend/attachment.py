"""Hosts that somebody else has asked for, and that a job only uses."""

from __future__ import annotations

from dataclasses import dataclass

from mesh_core import Credentials
from mesh_jobs._spec import MeshSpec

__all__ = ["Attachment"]


@dataclass(frozen=True)
class Attachment:
    """What a job uses that it has not made.

    Attributes:
        meshes: The meshes, as large as they are now.
        credentials: Those of a program that their workers trust.
    """

    meshes: tuple[MeshSpec, ...]
    credentials: Credentials
