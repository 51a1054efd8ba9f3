"""What the kernel knows about a process: CPU time, context switches, memory, children, death."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36
# The kernel's name for "the CPU clock of process pid" (clock_getcpuclockid(3)): it counts every
# thread, those that have ended included, to the nanosecond.
_CPUCLOCK_SCHED = 2


def cpu_ns(pid: int) -> int:
    """Returns the CPU time a live process has used, in nanoseconds.

    Raises:
        OSError: The process is gone.
    """
    return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)


def cpu_ns_of(pids: Iterable[int]) -> int:
    """Returns the CPU time of those of the processes that are alive, in nanoseconds."""
    total = 0
    for pid in pids:
        try:
            total += cpu_ns(pid)
        except OSError:
            continue
    return total


def context_switches(pid: int) -> tuple[int, int]:
    """Returns the (voluntary, involuntary) context switches of a process's live threads."""
    voluntary = involuntary = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in status.splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                voluntary += int(line.split()[1])
            elif line.startswith("nonvoluntary_ctxt_switches"):
                involuntary += int(line.split()[1])
    return voluntary, involuntary


def pss_kib(pid: int) -> int:
    """Returns a process's proportional share of memory, in KiB.

    Raises:
        OSError: The process is gone, or belongs to someone else.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise OSError(f"no Pss line in /proc/{pid}/smaps_rollup: is the process a zombie?")


def own_bytes(pid: int) -> int:
    """Returns the memory of a process that is no file's.

    Raises:
        OSError: The process is gone.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    kept = (fields.get(part, "0 kB") for part in ("RssAnon", "RssShmem"))
    return sum(int(each.split()[0]) for each in kept) << 10


def name_of(pid: int) -> str:
    """Returns the name of a process, of which the kernel keeps 15 letters.

    Raises:
        OSError: The process is gone.
    """
    return Path(f"/proc/{pid}/comm").read_text().strip()


def descendants(root: int) -> list[int]:
    """Returns the pids of all processes below one."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
        children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def wait_ended(pids: Iterable[int], timeout_s: float) -> int:
    """Waits until the processes have ended (a zombie has), and returns how many have not."""
    poll = select.poll()
    open_fds: set[int] = set()
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        open_fds.add(fd)
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + timeout_s
    while open_fds and (left_s := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            open_fds.discard(fd)
            os.close(fd)
    for fd in open_fds:
        os.close(fd)
    return len(open_fds)


def machine_busy_s() -> float:
    """Returns the CPU seconds the whole machine has worked, those the hypervisor took included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) for f in fields[:8])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def adopt_orphans() -> None:
    """Makes this process the parent of what its children leave behind, so that it can be seen.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")


def end_leftovers() -> int:
    """Ends every process below this one, by its pid, and returns how many there were."""
    left = descendants(os.getpid())
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    wait_ended(left, timeout_s=5.0)
    reap()
    return len(left)


def reap() -> None:
    """Collects the exit status of every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
