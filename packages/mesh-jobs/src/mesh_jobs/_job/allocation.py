"""Allocation and release of hosts, which survives a kill of the program at any point.

The caller of these functions holds the lock of the job's folder. Each step is recorded before it is
executed (write-ahead), and the next program completes the step that an earlier one started.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace

from mesh_core import Credentials
from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.registry import load_backend
from mesh_jobs._backend.report import Allocation, Phase
from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._job.state import detach_meshes
from mesh_jobs._spec import JobSpec
from mesh_jobs._state.folder import StateFolder, remember
from mesh_jobs._state.record import Record, this_owner
from mesh_jobs._state.shared_credentials import credentials_for_new_job

__all__ = ["recover_allocation", "release_allocation", "resize_allocation", "start_allocation"]


def start_allocation(
    folder: StateFolder, spec: JobSpec, credentials: Credentials | None = None
) -> Record:
    """Request hosts under a new allocation id, which is stored before the scheduler receives it.

    Args:
        folder: The state folder of the job.
        spec: The requested job.
        credentials: Credentials that the hosts already trust. None creates new credentials.

    Raises:
        SchedulerUnreachable: The scheduler may have received the request. The id is kept, so the
            next call resumes with it.
        JobError: The scheduler rejected the request, and the state folder was cleared.
    """
    folder.begin(credentials or credentials_for_new_job())
    record = Record(spec, uuid.uuid4().hex)
    folder.write(record)
    folder.note("applied", f"by process {record.owner['pid']} on {record.owner['host']}")
    remember(folder.path)
    try:
        return _submit(folder, record)
    except SchedulerUnreachable:
        raise
    except JobError:
        # Parts of the allocation may be running. Workers that cannot be terminated now exit when
        # their lease expires.
        with suppress(JobError):
            release_allocation(folder, record)
        folder.clear()
        raise


def recover_allocation(folder: StateFolder, record: Record, wanted: JobSpec) -> Record | None:
    """Complete the step that an earlier program left unfinished.

    Args:
        folder: The state folder of the job.
        record: The stored record.
        wanted: The job that this program requests; a request for another job is not submitted.

    Returns:
        The record; None if the allocation has ended.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
        JobError: The scheduler rejected the request.
    """
    if record.is_ending:
        release_allocation(folder, record)
        return None
    if record.allocation is None:
        if record.spec != wanted:
            return record
        folder.note("found", f"the allocation that process {record.owner.get('pid')} began")
        record = _submit(folder, replace(record, owner=this_owner()))
    if record.resizing is not None:
        record = resize_allocation(folder, record, record.resizing)
    if _phase(record) is not Phase.ENDED:
        return record
    # The allocation has ended, so only its remains are cleaned up.
    release_allocation(folder, record)
    return None


def resize_allocation(folder: StateFolder, record: Record, spec: JobSpec) -> Record:
    """Resize an allocation to a spec.

    Raises:
        NotSupported: The scheduler does not support this resize; nothing was changed.
        SchedulerUnreachable: The scheduler cannot be reached; the next program completes the step.
    """
    allocation = _checked_allocation(record.allocation)
    folder.write(replace(record, resizing=spec))
    resized = replace(record, spec=spec, resizing=None)
    try:
        allocation = load_backend(spec.backend, spec.options).resize(
            allocation, _request(folder, resized)
        )
    except SchedulerUnreachable:
        raise
    except JobError:
        folder.write(replace(record, resizing=None))
        raise
    resized = replace(resized, allocation=allocation)
    folder.write(resized)
    return resized


def release_allocation(folder: StateFolder, record: Record, *, is_forced: bool = False) -> None:
    """Release an allocation and clear its state folder; its id alone suffices.

    Args:
        folder: The state folder of the job.
        record: The stored record.
        is_forced: Clear the folder even if the scheduler cannot be reached.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached; the folder was not cleared.
    """
    folder.write(replace(record, is_ending=True))
    detach_meshes(record.allocation_id)
    backend = load_backend(record.spec.backend, record.spec.options)
    try:
        allocation = record.allocation
        if allocation is None:
            allocation = _find_allocation(folder, record)
        if allocation is not None:
            backend.release(allocation)
    except SchedulerUnreachable:
        if not is_forced:
            raise
    folder.clear()


def _submit(folder: StateFolder, record: Record) -> Record:
    backend = load_backend(record.spec.backend, record.spec.options)
    record = replace(record, allocation=backend.allocate(_request(folder, record)))
    folder.write(record)
    return record


def _find_allocation(folder: StateFolder, record: Record) -> Allocation | None:
    """Find an allocation whose program died before it could store it."""
    backend = load_backend(record.spec.backend, record.spec.options)
    try:
        return backend.find(_request(folder, record))
    except SchedulerUnreachable:
        raise
    except JobError:
        return None  # The scheduler rejects the request, so nothing of it runs.


def _phase(record: Record) -> Phase:
    backend = load_backend(record.spec.backend, record.spec.options)
    return backend.report(_checked_allocation(record.allocation)).state


def _request(folder: StateFolder, record: Record) -> AllocationRequest:
    return AllocationRequest(record.allocation_id, record.spec, folder.path, folder.credentials())


def _checked_allocation(allocation: Allocation | None) -> Allocation:
    assert allocation is not None, "only a submitted job has an allocation"
    return allocation
