"""Asking for hosts and giving them back, so that a program may be killed between any two steps.

Whoever calls these functions holds the lock of the job's folder. Each step is noted before it is
done; the program that comes next finishes what the one before it began.
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

__all__ = ["begin", "carry_on", "give_back", "resize"]


def begin(folder: StateFolder, spec: JobSpec, credentials: Credentials | None = None) -> Record:
    """Asks for hosts under a new id, which is stored before anybody hears of it.

    Args:
        folder: The job's folder.
        spec: What is asked for.
        credentials: Those that the hosts trust already; new ones when left out.

    Raises:
        SchedulerUnreachable: It may have heard the order: the id stays, for the next call.
        JobError: The scheduler refuses; nothing is left of the order.
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
        # Parts of it may run. Those that cannot be ended now end when their lease does.
        with suppress(JobError):
            give_back(folder, record)
        folder.clear()
        raise


def carry_on(folder: StateFolder, record: Record, wanted: JobSpec) -> Record | None:
    """Finishes what a program before this one began; None when the allocation is over.

    Args:
        folder: The job's folder.
        record: What is stored there.
        wanted: What this program asks for: nothing else is submitted in its name.

    Raises:
        SchedulerUnreachable: The scheduler cannot be asked.
        JobError: The scheduler refuses.
    """
    if record.is_ending:
        give_back(folder, record)
        return None
    if record.ticket is None:
        if record.spec != wanted:
            return record
        folder.note("found", f"what process {record.owner.get('pid')} began")
        record = _submit(folder, replace(record, owner=this_owner()))
    if record.resizing is not None:
        record = resize(folder, record, record.resizing)
    if _phase(record) is not Phase.ENDED:
        return record
    # What is over cannot be lost any more: what is left of it is tidied up.
    give_back(folder, record)
    return None


def resize(folder: StateFolder, record: Record, spec: JobSpec) -> Record:
    """Brings an allocation to the size of a spec.

    Raises:
        NotSupported: The scheduler cannot; nothing was changed.
        SchedulerUnreachable: The scheduler cannot be asked; the next program finishes it.
    """
    ticket = _known(record.ticket)
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


def give_back(folder: StateFolder, record: Record, *, is_forced: bool = False) -> None:
    """Releases the allocation, also one of which only the id is known, and forgets it.

    Args:
        folder: The job's folder.
        record: What is stored there.
        is_forced: Forget it also when the scheduler cannot be asked.

    Raises:
        SchedulerUnreachable: The scheduler cannot be asked; nothing is forgotten.
    """
    folder.write(replace(record, is_ending=True))
    detach_meshes(record.order_id)
    backend = load_backend(record.spec.backend, record.spec.options)
    try:
        ticket = record.ticket
        if ticket is None:
            ticket = _found(folder, record)
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


def _found(folder: StateFolder, record: Record) -> Ticket | None:
    """Gives the ticket of an order whose program died before it had it."""
    backend = load_backend(record.spec.backend, record.spec.options)
    try:
        return backend.find(_order(folder, record))
    except SchedulerUnreachable:
        raise
    except JobError:
        return None  # It refuses the order, so there is nothing of it.


def _phase(record: Record) -> Phase:
    backend = load_backend(record.spec.backend, record.spec.options)
    return backend.report(_known(record.ticket)).state


def _order(folder: StateFolder, record: Record) -> Order:
    return Order(record.order_id, record.spec, folder.path, folder.credentials())


def _known(ticket: Ticket | None) -> Ticket:
    assert ticket is not None, "a job that was never submitted cannot be asked about"
    return ticket
