"""The job that encloses this program, if it is the client script of one.

The runner of a client script sets two environment variables. With them, each job that the script
creates refers to the enclosing job, whichever backend its class is for, so a script runs unchanged
inside and outside a job.
"""

from __future__ import annotations

import os
from pathlib import Path

from mesh_jobs._errors import JobMismatch
from mesh_jobs._spec import JobSpec

__all__ = ["check_meshes", "client_environment", "enclosing_job_folder"]

_FOLDER_VARIABLE = "MESH_BATCH_FOLDER"
_CONTEXT_VARIABLE = "MESH_BATCH_CONTEXT"


def client_environment(folder: str, context: str) -> dict[str, str]:
    """Return the environment variables that name the enclosing job of a client script."""
    return {_FOLDER_VARIABLE: folder, _CONTEXT_VARIABLE: context}


def enclosing_job_folder(context: str) -> Path | None:
    """Return the state folder of the enclosing job; None if the context is not that job's."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    return Path(folder) if folder and os.environ.get(_CONTEXT_VARIABLE) == context else None


def check_meshes(context: str, enclosing: JobSpec, requested: JobSpec) -> None:
    """Check that the enclosing job has the meshes that the script requests.

    Raises:
        JobMismatch: A mesh is missing or has another size.
    """
    has = {mesh.name: mesh.hosts for mesh in enclosing.meshes}
    found = [
        (f"meshes.{mesh.name}.hosts", has.get(mesh.name), mesh.hosts)
        for mesh in requested.meshes
        if has.get(mesh.name) != mesh.hosts
    ]
    if found:
        raise JobMismatch(context, found)
