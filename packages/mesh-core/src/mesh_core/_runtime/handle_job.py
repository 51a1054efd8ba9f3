"""Check that a handle belongs to the job of the process that unpickles it.

Addresses are unique within one job only: the same process and port exist in every job. A pickled
handle therefore carries the id of its job, and unpickling compares it with the id of this process.
"""

from __future__ import annotations

from mesh_core._errors import ForeignHandle
from mesh_core._runtime.runtime import runtime_if_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._runtime.runtime import Runtime

__all__ = ["runtime_of_job"]


def runtime_of_job(job: bytes, handle: str, name: str = "") -> Runtime:
    """Return the runtime of this process, which must belong to `job`.

    It does not start a job: a process without one cannot own a handle.

    Args:
        job: The id of the job that created the handle, 16 bytes.
        handle: The kind of handle, for the error message, such as "actor mesh".
        name: The name of the mesh, for the error message.

    Raises:
        ForeignHandle: This process belongs to another job, or to none.
    """
    current = runtime_if_any()
    if current is not None and current.identity.job == job:
        return current
    own_job = "" if current is None else current.identity.job.hex()
    raise ForeignHandle(f"{handle} {name!r}" if name else handle, job.hex(), own_job)
