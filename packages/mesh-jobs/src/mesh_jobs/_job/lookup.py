"""Jobs that are applied, found by where and under what name that was."""

from __future__ import annotations

import os

from mesh_jobs._errors import JobError
from mesh_jobs._job.job import Job
from mesh_jobs._state.folder import applied_folders, find_folder

__all__ = ["job_list", "job_load"]


def job_load(context: str | None = None, *, folder: str | os.PathLike[str] | None = None) -> Job:
    """Finds a job that is applied, without asking for anything.

    Args:
        context: Its name; `default` when left out.
        folder: In which folder; when left out the current one, or for a name any.

    Raises:
        JobError: None is applied there.
    """
    found = find_folder(context, folder)
    record = found.read()
    if record is None:
        raise JobError(f"no job is applied in {found.path}: apply one first")
    return Job._loaded(found, record)


def job_list(folder: str | os.PathLike[str] | None = None) -> list[Job]:
    """Gives all jobs that are applied in a folder, and those with a name in any.

    Args:
        folder: The folder; the current one when left out.
    """
    found = ((one, one.read()) for one in applied_folders(folder))
    return [Job._loaded(one, record) for one, record in found if record is not None]
