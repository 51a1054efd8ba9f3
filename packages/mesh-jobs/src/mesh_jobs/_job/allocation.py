"""Allocation and release of hosts, which survives a kill of the program at any point.

The caller of these functions holds the lock of the job's folder. Each step is recorded before it is
executed (write-ahead), and the next program completes the step that an earlier one started.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace

from mesh_core import Credentials
from mesh_jobs._backend.order import Order
from mesh_jobs._backend.registry import load_backend
from mesh_jobs._backend.report import Phase, Ticket
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
    """Request hosts under a new order id, which is stored before the scheduler receives it.

    Args:
        folder: The state folder of the job.
        spec: The requested job.
        credentials: Credentials that the hosts already trust. None creates new credentials.

    Raises:
        SchedulerUnreachable: The scheduler may have received the order. The id is kept, so the next
            call resumes with it.
        JobError: The scheduler rejected the order, and the state folder was cleared.
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
        # Parts of the order may be running. Workers that cannot be terminated now exit when their
        # lease expires.
        with suppress(JobError):
            release_allocation(folder, record)
        folder.clear()
        raise


def recover_allocation(folder: StateFolder, record: Record, wanted: JobSpec) -> Record | None:
    """Complete the step that an earlier program left unfinished.

    Args:
        folder: The state folder of the job.
        record: The stored record.
        wanted: The job that this program requests; an order for another job is not submitted.

    Returns:
        The record; None if the allocation has ended.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached.
        JobError: The scheduler rejected the order.
    """
    if record.is_ending:
        release_allocation(folder, record)
        return None
    if record.ticket is None:
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
    ticket = _checked_ticket(record.ticket)
    folder.write(replace(record, resizing=spec))
    resized = replace(record, spec=spec, resizing=None)
    try:
        ticket = load_backend(spec.backend, spec.options).resize(ticket, _order(folder, resized))
    except SchedulerUnreachable:
        raise
    except JobError:
        folder.write(replace(record, resizing=None))
        raise
    resized = replace(resized, ticket=ticket)
    folder.write(resized)
    return resized


def release_allocation(folder: StateFolder, record: Record, *, is_forced: bool = False) -> None:
    """Release an allocation and clear its state folder; an order id without a ticket suffices.

    Args:
        folder: The state folder of the job.
        record: The stored record.
        is_forced: Clear the folder even if the scheduler cannot be reached.

    Raises:
        SchedulerUnreachable: The scheduler cannot be reached; the folder was not cleared.
    """
    folder.write(replace(record, is_ending=True))
    detach_meshes(record.order_id)
    backend = load_backend(record.spec.backend, record.spec.options)
    try:
        ticket = record.ticket
        if ticket is None:
            ticket = _find_ticket(folder, record)
        if ticket is not None:
            backend.release(ticket)
    except SchedulerUnreachable:
        if not is_forced:
            raise
    folder.clear()


def _submit(folder: StateFolder, record: Record) -> Record:
    backend = load_backend(record.spec.backend, record.spec.options)
    record = replace(record, ticket=backend.allocate(_order(folder, record)))
    folder.write(record)
    return record


def _find_ticket(folder: StateFolder, record: Record) -> Ticket | None:
    """Find the ticket of an order whose program died before it could store the ticket."""
    backend = load_backend(record.spec.backend, record.spec.options)
    try:
        return backend.find(_order(folder, record))
    except SchedulerUnreachable:
        raise
    except JobError:
        return None  # The scheduler rejects the order, so nothing of it runs.


def _phase(record: Record) -> Phase:
    backend = load_backend(record.spec.backend, record.spec.options)
    return backend.report(_checked_ticket(record.ticket)).state


def _order(folder: StateFolder, record: Record) -> Order:
    return Order(record.order_id, record.spec, folder.path, folder.credentials())


def _checked_ticket(ticket: Ticket | None) -> Ticket:
    assert ticket is not None, "only a submitted job has a ticket"
    return ticket
