"""The states of processes, limited to values that explain why other processes wait."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mesh_core.spi import Activity
from mesh_telemetry._collectives.collectives_file import (
    Collective,
    ProcessGroup,
    read_collectives,
    read_groups,
)
from mesh_telemetry._events.process_socket import STATE, request_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from mesh_telemetry._events.proc_folder import ProcFolder

__all__ = ["Frame", "ProcessState", "Stack", "Wait", "process_states"]

_REPLY_TIMEOUT_S = 0.25
# Positions in `/proc/<pid>/stat` after the name in parentheses.
_STATE, _USER, _SYSTEM = 0, 11, 12
# The position of the time on the run queue, in nanoseconds, in `schedstat`.
_RUN_DELAY = 1
_NS = 1_000_000_000


class Frame(NamedTuple):
    """A call on a stack."""

    function: str
    file: str
    line: int


class Stack(NamedTuple):
    """The calls of a thread or of a suspended task, innermost first."""

    thread_name: str
    thread: int
    """The Python id of the thread."""
    task: str | None
    """The name of the suspended task; None for the thread itself."""
    frames: tuple[Frame, ...]


class Wait(NamedTuple):
    """A reply that a process waits for."""

    actor: str
    """The waiting actor; empty if it is not known."""
    endpoint: str
    """The endpoint that was called."""
    proc: int
    """The process that has not replied: host in the upper 32 bits, slot in the lower."""
    waited_s: float | None


class ProcessState(NamedTuple):
    """A process at one moment."""

    host: int
    host_name: str
    slot: int
    mesh: str
    rank: int
    pid: int
    now_ns: int
    state: str
    """The letter of the kernel, such as `R`, `S` or `T`; `X` if it has exited."""
    is_busy: bool
    """Whether the process or a child of it is running, or is ready to run."""
    cpu_s: float
    """Processor time of the process and its children, and time that they have waited for it."""
    io_bytes: int
    """Bytes that the process and its children have read and written with system calls."""
    groups: tuple[ProcessGroup, ...]
    collectives: tuple[Collective, ...]
    stacks: tuple[Stack, ...] | None
    """None if the process has not replied."""
    waits: tuple[Wait, ...]
    running: tuple[str, ...] | None
    """The endpoints that its actors serve; None if it has no actors, or has not replied."""
    is_script: bool = False
    """Whether it is a script that the process of this slot has started."""
    silent_s: float = 0.0
    """How long its host has not replied; 0 if this state is its reply."""

    @property
    def proc(self) -> int:
        """The process as one number: host in the upper 32 bits, slot in the lower."""
        return self.host << 32 | self.slot

    @property
    def key(self) -> tuple[int, int]:
        """The host and the pid, which also distinguish a script from its parent process."""
        return self.host, self.pid

    @property
    def name(self) -> str:
        """The process as `host.slot`."""
        return f"{self.host}.{self.slot}"


def process_states(folders: Sequence[ProcFolder]) -> list[ProcessState]:
    """Read the state of the recorded processes of a host; of each slot, the latest process."""
    latest = {(one.identity.slot, one.is_script): one for one in folders}.values()
    replies = request_all(
        [folder.path for folder in latest if folder.is_alive], STATE, _REPLY_TIMEOUT_S
    )
    return [_state_of(folder, *replies.get(folder.path, (None, (), None))) for folder in latest]


def _state_of(folder: ProcFolder, stacks: Any, waits: Any, activity: Any) -> ProcessState:
    identity = folder.identity
    # The kernel may have given the pid of an exited process to another one.
    pids = [identity.pid, *_descendants(identity.pid)] if folder.is_alive else []
    states = [found for pid in pids if (found := _kernel_state(pid)) is not None]
    own = folder.own_ports
    return ProcessState(
        identity.host,
        identity.host_name,
        identity.slot,
        identity.mesh_name,
        identity.rank,
        identity.pid,
        time.time_ns(),
        states[0][0] if states else "X",
        any(state in "RD" for state, _ in states),
        sum(cpu_s for _, cpu_s in states),
        sum(map(_io_bytes, pids)),
        tuple(read_groups(str(folder.path))),
        tuple(read_collectives(str(folder.path))),
        None if stacks is None else tuple(map(_stack, stacks)),
        tuple(
            Wait(name, endpoint, proc, waited_s)
            for _, proc, port, actor, name, _, endpoint, waited_s in waits
            if port not in own and actor not in own and proc not in folder.own_procs
        ),
        None
        if activity is None
        else tuple(
            one.last for one in map(Activity._make, activity) if one.port not in own and one.running
        ),
        is_script=folder.is_script,
    )


def _stack(plain: Any) -> Stack:
    thread_name, thread, task, _, frames = plain
    return Stack(thread_name, thread, task, tuple(Frame(*frame) for frame in frames))


def _kernel_state(pid: int) -> tuple[str, float] | None:
    with suppress(OSError, IndexError, ValueError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(words[_USER]) + int(words[_SYSTEM])
        # The kernel reports the state of the main thread only, so the other threads are read as
        # well.
        states, cpu_wait_s = _threads(pid)
        state = "R" if "R" in states else words[_STATE]
        return state, ticks / os.sysconf("SC_CLK_TCK") + cpu_wait_s
    return None


def _io_bytes(pid: int) -> int:
    with suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        values = dict(line.split(": ") for line in lines)
        return int(values["rchar"]) + int(values["wchar"])
    return 0


def _threads(pid: int) -> tuple[set[str], float]:
    """Return the states of the threads, and how long they have waited for a processor in all."""
    states: set[str] = set()
    waited_ns = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, IndexError, ValueError):
                folder = f"/proc/{pid}/task/{thread}"
                text = Path(folder, "stat").read_text()
                states.add(text.rpartition(")")[2].split()[_STATE])
                waited_ns += int(Path(folder, "schedstat").read_text().split()[_RUN_DELAY])
    return states, waited_ns / _NS


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with suppress(OSError):
                    words = Path(f"/proc/{parent}/task/{thread}/children").read_text().split()
                    found += map(int, words)
    return found[1:]
