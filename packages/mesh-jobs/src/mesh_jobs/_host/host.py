"""The information that a worker has on its host: identity, program, output and processes."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass

from mesh_jobs._host.log_buffer import WorkerLog
from mesh_jobs._host.processes import HostProcess, Kind, host_processes

__all__ = ["SERVES_JOB", "Program", "ServedHost"]

SERVES_JOB = re.compile(
    r"mesh worker serves a job of (?P<owner>.*?)(?P<beside> beside others)?"
    r" in process (?P<session>[0-9]+)"
)
# The program has left the host, which can take a second to stop its processes.
_IS_ENDING = "mesh worker is ending the job"
_HAS_PROCESS = re.compile(r"mesh worker has process ([0-9]+): (.*)")
_NAMES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Program:
    """A program that uses the host.

    Attributes:
        owner: The user, the machine and the process of the program, such as
            `ada@login1 (process 4711)`.
        since: When the program attached, in seconds since 1970.
        agent: The pid of the process that serves the program.
    """

    owner: str
    since: float
    agent: int


class ServedHost:
    """A host, as its worker sees it.

    Args:
        name: The host name of the machine.
        mesh: The mesh of the host.
        rank: The rank of the host in the mesh.
        epoch: The number of earlier workers of this rank.
        allocation_id: The id of the allocation.
    """

    def __init__(self, name: str, mesh: str, rank: int, epoch: int, allocation_id: str) -> None:
        self.name = name
        self.mesh = mesh
        self.rank = rank
        self.epoch = epoch
        self.allocation_id = allocation_id
        self.address = ""
        self.started: float = time.time()
        self.log: WorkerLog = WorkerLog()
        self._program: Program | None = None
        self._guests: list[Program] = []
        self._names: dict[int, str] = {}
        # Output lines and requests arrive on different threads.
        self._lock = threading.Lock()

    def record_line(self, line: str, is_error: bool = False) -> None:
        """Process an output line of the worker or of a process that it runs."""
        self.log.add(line, is_error)
        if is_error:
            return
        if serves := SERVES_JOB.fullmatch(line):
            program = Program(serves["owner"], time.time(), int(serves["session"]))
            with self._lock:
                # A program in an additional session does not occupy the host.
                if serves["beside"] is None:
                    self._program = program
                    self._names.clear()
                else:
                    self._guests = [one for one in self._guests if _is_there(one.agent)]
                    self._guests.append(program)
        elif line == _IS_ENDING:
            with self._lock:
                self._program = None
        elif found := _HAS_PROCESS.fullmatch(line):
            with self._lock:
                if len(self._names) < _NAMES_MAX:
                    self._names[int(found[1])] = found[2]

    def processes(self) -> list[HostProcess]:
        """List the processes of the host, parents before their children."""
        with self._lock:
            names = dict(self._names)
        return host_processes(os.getpid(), names)

    def program_among(self, processes: list[HostProcess]) -> Program | None:
        """Return the program that the host serves; None if the host is free."""
        with self._lock:
            program = self._program
        # A killed agent process does not report the end of its session.
        is_served = program is not None and any(
            one.kind is Kind.AGENT and one.pid == program.agent for one in processes
        )
        return program if is_served else None

    def owners_among(self, processes: list[HostProcess]) -> dict[int, str]:
        """Return the program that each process belongs to, by pid; other processes are omitted.

        Args:
            processes: The processes of the host, parents before their children.
        """
        with self._lock:
            guests = {one.agent: one.owner for one in self._guests}
        program = self.program_among(processes)
        owners: dict[int, str] = {}
        for one in processes:
            owner = owners.get(one.parent, "" if program is None else program.owner)
            if one.kind is Kind.AGENT:
                is_main = program is not None and one.pid == program.agent
                owner = owner if is_main else guests.get(one.pid, "")
            if owner and one.kind is not Kind.WORKER:
                owners[one.pid] = owner
        return owners


def _is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
