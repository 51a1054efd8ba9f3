"""Whether this program is the client of a job, and which job that is.

Whoever runs the client script of a job says so in its environment. There any job that the script
makes is the one around it, whatever scheduler its class is for: what ran outside runs inside.
"""

from __future__ import annotations

import os
from pathlib import Path

from mesh_jobs._errors import JobMismatch
from mesh_jobs._spec import JobSpec

__all__ = ["check_fits", "client_environment", "folder_around"]

_FOLDER = "MESH_BATCH_FOLDER"
_CONTEXT = "MESH_BATCH_CONTEXT"


def client_environment(folder: str, context: str) -> dict[str, str]:
    """Gives the variables that tell a client script which job it is in."""
    return {_FOLDER: folder, _CONTEXT: context}


def folder_around(context: str) -> Path | None:
    """Gives the state of the job that this program is the client of, if a context means that."""
    folder = os.environ.get(_FOLDER)
    return Path(folder) if folder and os.environ.get(_CONTEXT) == context else None


def check_fits(context: str, around: JobSpec, asked: JobSpec) -> None:
    """Looks that the job around a script has the meshes that the script asks for.

    Raises:
        JobMismatch: It lacks some, or they have another size.
    """
    has = {mesh.name: mesh.hosts for mesh in around.meshes}
    found = [
        (f"meshes.{mesh.name}.hosts", has.get(mesh.name), mesh.hosts)
        for mesh in asked.meshes
        if has.get(mesh.name) != mesh.hosts
    ]
    if found:
        raise JobMismatch(context, found)
