"""Loading of the job that a file or module defines."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from mesh_jobs._errors import JobError
from mesh_jobs._job.job import Job

__all__ = ["load_target"]

_ATTRIBUTE = "job"


def load_target(target: str) -> Job:
    """Execute `file.py` or `module`, and return its `job`, or the attribute after a colon.

    Raises:
        JobError: The file or module does not exist or raises an error, or the name is not a job.
    """
    where, _, name = target.partition(":")
    name = name or _ATTRIBUTE
    found = _names_of(where)
    if name not in found:
        raise JobError(f"{where} defines no {name!r}: write {where}:NAME with the name of its job")
    job = found[name]
    if not isinstance(job, Job):
        raise JobError(f"{name!r} of {where} is a {type(job).__name__}: it must be a job")
    return job


def _names_of(where: str) -> dict[str, Any]:
    is_file = where.endswith(".py") or Path(where).is_file()
    if is_file and not Path(where).is_file():
        raise JobError(f"there is no file {where!r}: give the file that defines the job")
    folder = str(Path(where).resolve().parent) if is_file else str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        # The run name differs from `__main__`, so code that is guarded by it is not executed.
        return (
            runpy.run_path(where, run_name="mesh_job")
            if is_file
            else runpy.run_module(where, run_name="mesh_job")
        )
    except ImportError as error:
        raise JobError(
            f"{where!r} cannot be imported: {error}: give the module that defines the job"
        ) from error
    except Exception as error:
        line = _line_in(error, where)
        raise JobError(f"{where} fails{line}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)


def _line_in(error: Exception, where: str) -> str:
    """Return the line of the program that raised the error."""
    step, found = error.__traceback__, ""
    while step is not None:
        if Path(step.tb_frame.f_code.co_filename).name == Path(where).name:
            found = f" on line {step.tb_lineno}"
        step = step.tb_next
    return found
