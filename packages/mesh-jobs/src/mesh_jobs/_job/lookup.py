"""Functions that find applied jobs by folder and context."""

from __future__ import annotations

import os

from mesh_jobs._errors import JobError
from mesh_jobs._job.job import Job
from mesh_jobs._state.folder import applied_folders, find_folder

__all__ = ["job_list", "job_load"]


def job_load(context: str | None = None, *, folder: str | os.PathLike[str] | None = None) -> Job:
    """Return an applied job, without allocating anything.

    Args:
        context: The name of the context. Defaults to `default`.
        folder: The folder in which the job was applied. Defaults to the current folder, or for a
            named context to any folder.

    Raises:
        JobError: No job is applied there.
    """
    found = find_folder(context, folder)
    record = found.read()
    if record is None:
        raise JobError(f"no job is applied in {found.path}: apply one first")
    return Job._loaded(found, record)


def job_list(folder: str | os.PathLike[str] | None = None) -> list[Job]:
    """Return all jobs that are applied in a folder, and all jobs with a named context.

    Args:
        folder: The folder. Defaults to the current folder.
    """
    found = ((one, one.read()) for one in applied_folders(folder))
    return [Job._loaded(one, record) for one, record in found if record is not None]
