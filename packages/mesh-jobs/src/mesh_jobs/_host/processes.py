"""The processes of a host: the worker, the agents that serve programs, and their processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from mesh_jobs._host.process_table import Process, command_of, processes

__all__ = ["HostProcess", "Kind", "host_processes", "sampled"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_LEN = os.sysconf("SC_PAGE_SIZE")
_COMMAND_LEN_MAX = 300
# The names that mesh-core gives to the processes that start the processes of programs.
_SUPERVISOR = "mesh-supervisor"
_MACHINERY = (_SUPERVISOR, "mesh-template", "mesh-seed")


class Kind(StrEnum):
    """The role of a process on a host."""

    WORKER = "worker"
    AGENT = "agent"
    MACHINERY = "machinery"
    PROC = "proc"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process of a host.

    Attributes:
        pid: The process id.
        parent: The pid of the parent.
        kind: The role of the process.
        name: The mesh and the rank of a proc, possibly truncated by the system.
        ticks: The start time in ticks since boot, which distinguishes processes with a reused pid.
        started: The start time in seconds since 1970.
        cpu_s: The consumed CPU time in seconds.
        cpu: The number of CPUs in use.
        memory_bytes: The resident memory.
        threads: The number of threads.
        state: The state as one letter, as the kernel reports it.
        command: The command line.
    """

    pid: int
    parent: int
    kind: Kind
    name: str
    ticks: int
    started: float
    cpu_s: float
    cpu: float
    memory_bytes: int
    threads: int
    state: str
    command: str


def host_processes(worker: int, names: Mapping[int, str] | None = None) -> list[HostProcess]:
    """List a worker and its descendants, parents before their children.

    Args:
        worker: The pid of the worker.
        names: The full names of procs by pid, which replace the names that the system reports.
    """
    children: dict[int, list[Process]] = {}
    own: Process | None = None
    for one in processes():
        if one.pid == worker:
            own = one
        children.setdefault(one.parent, []).append(one)
    if own is None:
        return []
    now, boot = time.time(), _boot_time()
    found = []
    for process, kind in _with_kinds(own, children):
        read = _read(process, kind, boot, now)
        if read is not None:
            name = (names or {}).get(read.pid) if kind is Kind.PROC else None
            found.append(replace(read, name=name or read.name))
    return found


def sampled(
    look: Callable[[], list[HostProcess]], interval_s: float, wait: Callable[[float], object]
) -> list[HostProcess]:
    """List processes twice, and compute their CPU usage over the interval between the two lists.

    Args:
        look: A function that lists the processes.
        interval_s: The interval in seconds; with 0, the processes are listed once.
        wait: A function that waits for a number of seconds.
    """
    if not interval_s:
        return look()
    began = time.monotonic()
    before = {(one.pid, one.ticks): one.cpu_s for one in look()}
    wait(interval_s)
    after, took_s = look(), time.monotonic() - began
    return [
        replace(one, cpu=(one.cpu_s - before.get((one.pid, one.ticks), 0.0)) / took_s)
        for one in after
    ]


def _with_kinds(
    worker: Process, children: Mapping[int, list[Process]]
) -> Iterator[tuple[Process, Kind]]:
    waiting: list[tuple[Process, Kind]] = [(worker, Kind.WORKER)]
    while waiting:
        process, kind = waiting.pop()
        yield process, kind
        own = sorted(children.get(process.pid, ()), key=lambda one: (one.started, one.pid))
        waiting += [(one, _kind(one, process, kind)) for one in reversed(own)]


def _kind(process: Process, parent: Process, of_parent: Kind) -> Kind:
    if of_parent is Kind.WORKER:
        # Agents stay in the worker's process session; other commands of the worker get their own
        # session.
        return Kind.AGENT if process.session == parent.session else Kind.MACHINERY
    if of_parent is Kind.AGENT:
        return Kind.MACHINERY if _name_of(process.pid) == _SUPERVISOR else Kind.CHILD
    if of_parent is Kind.MACHINERY:
        is_own = _name_of(process.pid) in _MACHINERY
        return Kind.MACHINERY if is_own or _name_of(parent.pid) != _SUPERVISOR else Kind.PROC
    return Kind.CHILD


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def _read(process: Process, kind: Kind, boot: float, now: float) -> HostProcess | None:
    """Return what the kernel reports about a process; None if it has exited."""
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return None
    fields = content[content.rfind(b")") + 2 :].split()
    if int(fields[19]) != process.started or fields[0] in (b"Z", b"X"):
        return None  # The process has exited, and its pid may have been reused.
    started = boot + process.started / _TICKS_PER_S
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return HostProcess(
        pid=process.pid,
        parent=process.parent,
        kind=kind,
        name=_name_of(process.pid),
        ticks=process.started,
        started=started,
        cpu_s=cpu_s,
        cpu=cpu_s / max(now - started, 1 / _TICKS_PER_S),
        memory_bytes=int(fields[21]) * _PAGE_LEN,
        threads=int(fields[17]),
        state=fields[0].decode(),
        command=" ".join(command_of(process.pid))[:_COMMAND_LEN_MAX],
    )


def _boot_time() -> float:
    """Return the boot time of the machine, in seconds since 1970."""
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            if line.startswith("btime "):
                return float(line.split()[1])
    return time.time() - time.monotonic()
