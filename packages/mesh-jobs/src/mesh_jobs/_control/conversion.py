"""Conversion of the state of a host into messages."""

from __future__ import annotations

import os
from typing import Any

from mesh_jobs._control.messages import message
from mesh_jobs._host.host import Program, ServedHost
from mesh_jobs._host.processes import HostProcess
from mesh_jobs._host.stacks import PySpyFailed, ThreadStack

__all__ = ["as_host", "as_process", "as_stacks"]

_Frame = message("Frame")
_Host = message("Host")
_Process = message("Process")
_ProcessStacks = message("ProcessStacks")
_Program = message("Program")
_Thread = message("Thread")

_UNLIMITED = "max"


def as_host(host: ServedHost, program: Program | None) -> Any:
    """Return the message of a host."""
    return _Host(
        name=host.name,
        mesh=host.mesh,
        rank=host.rank,
        epoch=host.epoch,
        allocation_id=host.allocation_id,
        address=host.address,
        started=host.started,
        program=None if program is None else _Program(owner=program.owner, since=program.since),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=_memory(),
    )


def as_process(process: HostProcess, owner: str) -> Any:
    """Return the message of a process."""
    return _Process(
        pid=process.pid,
        parent=process.parent,
        kind=_Process.Kind.Value(process.kind.name),
        name=process.name,
        owner=owner,
        started=process.started,
        cpu_s=process.cpu_s,
        cpu=process.cpu,
        memory_bytes=process.memory_bytes,
        threads=process.threads,
        state=process.state,
        command=process.command,
    )


def as_stacks(process: HostProcess, owner: str, found: list[ThreadStack] | PySpyFailed) -> Any:
    """Return the message of a process's stacks, or of the error that prevented sampling."""
    if isinstance(found, PySpyFailed):
        return _ProcessStacks(process=as_process(process, owner), problem=str(found))
    threads = [
        _Thread(
            id=one.id,
            name=one.name,
            is_active=one.is_active,
            holds_gil=one.holds_gil,
            frames=[
                _Frame(function=frame.function, file=frame.file, line=frame.line)
                for frame in one.frames
            ],
        )
        for one in found
    ]
    return _ProcessStacks(process=as_process(process, owner), threads=threads)


def _memory() -> int:
    """Return the memory of the machine, or the limit of the control group if that is lower."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:
        return machine
    return machine if limit == _UNLIMITED else min(machine, int(limit))
