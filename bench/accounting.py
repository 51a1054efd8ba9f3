"""Process accounting from the kernel: CPU time, context switches, memory, children and exit."""

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
# The kernel's name for "the CPU clock of process pid" (clock_getcpuclockid(3)). It includes all
# threads, also those that have exited, with nanosecond resolution.
_CPUCLOCK_SCHED = 2


def cpu_ns(pid: int) -> int:
    """Return the CPU time that a live process has used, in nanoseconds.

    Raises:
        OSError: The process does not exist.
    """
    return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)


def cpu_ns_of(pids: Iterable[int]) -> int:
    """Return the total CPU time of the processes that are alive, in nanoseconds."""
    total = 0
    for pid in pids:
        try:
            total += cpu_ns(pid)
        except OSError:
            continue
    return total


def context_switches(pid: int) -> tuple[int, int]:
    """Return the (voluntary, involuntary) context switches of a process's live threads."""
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
    """Return the proportional set size (PSS) of a process, in KiB.

    Raises:
        OSError: The process does not exist or belongs to another user.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise OSError(f"no Pss line in /proc/{pid}/smaps_rollup: is the process a zombie?")


def own_bytes(pid: int) -> int:
    """Return the resident memory of a process that is not backed by files, in bytes.

    Raises:
        OSError: The process does not exist.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    kept = (fields.get(part, "0 kB") for part in ("RssAnon", "RssShmem"))
    return sum(int(each.split()[0]) for each in kept) << 10


def name_of(pid: int) -> str:
    """Return the name of a process, which the kernel truncates to 15 characters.

    Raises:
        OSError: The process does not exist.
    """
    return Path(f"/proc/{pid}/comm").read_text().strip()


def descendants(root: int) -> list[int]:
    """Return the pids of all descendants of a process."""
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
    """Wait until the processes have exited (zombies count), and return how many have not."""
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
    """Return the CPU seconds used on the whole machine, including time stolen by the hypervisor."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) for f in fields[:8])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, so that they can be found.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")


def end_leftovers() -> int:
    """Kill every descendant of this process by pid, and return how many there were."""
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
    """Reap all children that have exited."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
