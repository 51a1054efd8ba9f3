"""The processes of a host: the worker, what serves a program there, and the program's own."""

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
# What mesh-core calls the processes that start those of programs.
_WARDEN = "mesh-warden"
_MACHINERY = (_WARDEN, "mesh-template", "mesh-seed")


class Kind(StrEnum):
    """What a process of a host is there for."""

    WORKER = "worker"
    AGENT = "agent"
    MACHINERY = "machinery"
    PROC = "proc"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process of a host.

    Attributes:
        pid: Its number.
        parent: That of its parent.
        kind: What it is there for.
        name: Of a proc its mesh and rank, as far as the system keeps it.
        ticks: When it was started, in ticks since boot: a pid that was used again has another.
        started: The same, in seconds since 1970.
        cpu_s: How long it has computed.
        cpu: How many processors it uses.
        memory_bytes: What it holds.
        threads: How many it has.
        state: One letter.
        command: Its command line.
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
    """Lists a worker and its descendants, parents before their children.

    Args:
        worker: The pid of the worker.
        names: What procs are called, where that is known better than the system does.
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
    """Looks twice, and says of the time between how many processors each has used.

    Args:
        look: Lists the processes.
        interval_s: How far the looks are apart; with 0 there is one.
        wait: Waits so many seconds.
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
        # What serves programs stays in the worker's session; other commands of it do not.
        return Kind.AGENT if process.session == parent.session else Kind.MACHINERY
    if of_parent is Kind.AGENT:
        return Kind.MACHINERY if _name_of(process.pid) == _WARDEN else Kind.CHILD
    if of_parent is Kind.MACHINERY:
        is_own = _name_of(process.pid) in _MACHINERY
        return Kind.MACHINERY if is_own or _name_of(parent.pid) != _WARDEN else Kind.PROC
    return Kind.CHILD


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def _read(process: Process, kind: Kind, boot: float, now: float) -> HostProcess | None:
    """Gives what the kernel says of a process; None when it is gone."""
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return None
    fields = content[content.rfind(b")") + 2 :].split()
    if int(fields[19]) != process.started or fields[0] in (b"Z", b"X"):
        return None  # It has ended, and its number may be another's.
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
    """When the machine was started, in seconds since 1970."""
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            if line.startswith("btime "):
                return float(line.split()[1])
    return time.time() - time.monotonic()
