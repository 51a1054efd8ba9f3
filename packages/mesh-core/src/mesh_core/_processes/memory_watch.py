"""Processes whose memory is limited: each is measured several times a second.

A process is killed when it exceeds its limit. Decision 0052 explains why cgroups do not enforce the
limit. The limit applies to a process and its descendants together. The sum of their resident memory
counts shared memory more than once, such as the modules of the template. It is therefore only an
upper bound, which is cheap to compute. Close to the limit, the watch reads the proportional set
size (PSS), which divides shared memory among its users.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mesh_core._processes.byte_size import byte_size_text
from mesh_core._processes.process_trees import ProcessTrees
from mesh_core._processes.requested_stack import requested_place
from mesh_core._system import kernel as _kernel

__all__ = ["MemoryWatch"]

# The time between two measurements: 0.1 s, unless a measurement takes more than 5% of that, as on a
# machine with thousands of processes.
_INTERVAL_S = (0.1, 0.2)
_LOOK_SHARE = 0.05
_WARN_SHARE = 0.9
# Below this share of the limit, the next crossing of `_WARN_SHARE` is reported again.
_REARM_SHARE = 0.8
# Reading PSS takes about 2 ms for each GiB. It takes at most this share of the time, unless the
# memory has grown enough to reach a limit.
_EXACT_SHARE = 0.05
# The time that a process has to report the line that it executes before it is killed.
_PLACE_S = 0.25


class _Measurement(NamedTuple):
    """The memory of a process and its descendants, in bytes."""

    total: int
    sizes: Mapping[int, int]
    """The memory of each process, by pid."""


class _Limited:
    """A process with a limit."""

    def __init__(self, pid: int, limit: int) -> None:
        self.pid = pid
        self.limit = limit
        self.peak = 0
        self.is_warned = False
        # The last exact measurement, the resident memory at that time, and when to repeat it.
        self.exact: tuple[int, int] | None = None
        self.exact_at = 0.0


class MemoryWatch:
    """Measures processes that have a memory limit; it does nothing while there are none.

    Args:
        warn: Called with the pid and a description when a process has used 90% of its limit. It is
            called again only after the process has used less than 80%.
        on_exceeded: Called with the pid and the cause immediately before a process is killed.
        clock: Returns the monotonic time in seconds.
    """

    def __init__(
        self,
        warn: Callable[[int, str], None],
        on_exceeded: Callable[[int, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn = warn
        self._on_exceeded = on_exceeded
        self._clock = clock
        self._limited: dict[int, _Limited] = {}
        self._trees = ProcessTrees()
        self._look_at = 0.0

    @property
    def look_at(self) -> float | None:
        """When to call `look` again; None if no process has a limit."""
        return self._look_at if self._limited else None

    def add(self, pid: int, limit_bytes: int | None) -> None:
        """Start to measure a process, unless it has no limit."""
        if limit_bytes is not None:
            self._limited[pid] = _Limited(pid, limit_bytes)
            self._trees.add(pid)

    def forget(self, pid: int) -> None:
        """Stop measuring a process, because it has exited."""
        if self._limited.pop(pid, None) is not None:
            self._trees.remove(pid)

    def look(self) -> None:
        """Measure all processes if it is time; warn, or kill processes above their limits."""
        began = self._clock()
        if not self._limited or began < self._look_at:
            return
        members = self._trees.look(began)
        for limited in list(self._limited.values()):
            self._check(limited, members[limited.pid])
        now = self._clock()
        shortest, longest = _INTERVAL_S
        self._look_at = now + min(max(shortest, (now - began) / _LOOK_SHARE), longest)

    def limit_cause(self, pid: int, cause: str, peak_bytes: int) -> str:
        """Extend the cause of a kill by the kernel, which may be faster, by the limit.

        Args:
            pid: The process.
            cause: Why the kernel has killed it.
            peak_bytes: The most memory that it has had.
        """
        limited = self._limited.get(pid)
        if limited is None:
            return cause
        limit = byte_size_text(limited.limit)
        peak = max(peak_bytes, limited.peak)
        if peak >= limited.limit:
            return (
                f"it exceeded its memory limit of {limit}: it had {byte_size_text(peak)}; {cause}"
            )
        return f"{cause}; its memory limit is {limit}"

    def _check(self, limited: _Limited, pids: Sequence[int]) -> None:
        found = self._measured(limited, pids)
        limited.peak = max(limited.peak, found.total)
        if found.total >= limited.limit:
            limit = byte_size_text(limited.limit)
            text = _described(limited.pid, found)
            place = requested_place(limited.pid, _PLACE_S)
            if place is not None:
                text = f"{text}; it executed {place}"
            self._on_exceeded(
                limited.pid, f"it exceeded its memory limit of {limit}: it had {text}"
            )
            # Its descendants may have left its process group. The process is killed before them,
            # so that it does not see them die.
            for pid in pids:
                _kernel.kill_quietly(pid, signal.SIGKILL)
        elif found.total >= limited.limit * _WARN_SHARE and not limited.is_warned:
            limited.is_warned = True
            share = 100 * found.total // limited.limit
            limit = byte_size_text(limited.limit)
            text = _described(limited.pid, found)
            self._warn(limited.pid, f"it uses {share}% of its memory limit of {limit}: {text}")
        elif found.total < limited.limit * _REARM_SHARE:
            limited.is_warned = False

    def _measured(self, limited: _Limited, pids: Sequence[int]) -> _Measurement:
        """Return the memory of processes: exact if that matters, otherwise an upper bound."""
        sizes = {pid: _kernel.resident_bytes(pid) for pid in pids}
        resident = sum(sizes.values())
        if resident < limited.limit * _WARN_SHARE:
            limited.exact = None
            return _Measurement(resident, sizes)
        now = self._clock()
        if limited.exact is not None and now < limited.exact_at:
            # Memory that was added since then usually belongs to these processes alone.
            exact, before = limited.exact
            bound = exact + max(0, resident - before)
            if bound < limited.limit * (1.0 if limited.is_warned else _WARN_SHARE):
                return _Measurement(bound, sizes)
        sizes = {pid: _proportional_bytes(pid, size) for pid, size in sizes.items()}
        limited.exact = sum(sizes.values()), resident
        limited.exact_at = now + (self._clock() - now) / _EXACT_SHARE
        return _Measurement(limited.exact[0], sizes)


def _described(leader: int, found: _Measurement) -> str:
    """Describe the memory of a process: its child processes, if any, and the largest of them."""
    text = byte_size_text(found.total)
    children = {pid: size for pid, size in found.sizes.items() if pid != leader and size}
    if not children:
        return text
    noun = "child process" if len(children) == 1 else "child processes"
    text = f"{text} together with {len(children)} {noun}"
    largest = max(children, key=lambda pid: children[pid])
    if children[largest] <= found.sizes[leader]:
        return text
    name = "?"
    with contextlib.suppress(OSError), open(f"/proc/{largest}/comm") as comm:
        name = comm.read().strip()
    return f"{text}; the largest is {name} (pid {largest}) with {byte_size_text(children[largest])}"


def _proportional_bytes(pid: int, resident: int) -> int:
    """Return the memory of a process, in which shared memory is divided among its users."""
    path = f"/proc/{pid}/smaps_rollup"
    # Some sandboxes lack the file.
    with contextlib.suppress(OSError, IndexError, ValueError), open(path, "rb") as rollup:
        for line in rollup:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) << 10
    # A process that exits has released its memory.
    return resident if os.path.exists(f"/proc/{pid}") else 0
