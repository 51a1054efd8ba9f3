"""Recognizes processes that the kernel has killed because memory ran out.

The kernel kills such a process with SIGKILL, which has no reason. It also counts these kills,
for each memory cgroup and for the whole machine. A process that ended by SIGKILL was killed for
this reason if one of the counters that concern it has increased.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mesh_core._processes.byte_size import byte_size_text

__all__ = ["MemoryDeaths"]

_ROOT = Path("/sys/fs/cgroup")
# Limits above this, in bytes, mean that memory is not limited.
_NO_LIMIT = 1 << 60
# The number of processes of a cgroup among which the largest is searched.
_SEARCHED_MAX = 500
_MIB = 1 << 20
# The counter of the machine includes kills in other cgroups. If the machine runs out of memory, the
# kernel does not choose a process that never had this much memory.
_CHOSEN_BYTES_MIN = 100 * _MIB


class MemoryDeaths:
    """The kills that were counted before.

    Args:
        root: The directory where the kernel shows cgroups.
        proc: The directory where it shows processes.
    """

    def __init__(self, root: Path = _ROOT, proc: Path = Path("/proc")) -> None:
        self._root = root
        self._proc = proc
        self._counts: dict[Path | None, int] = {}
        # Processes start in the cgroup of their parent.
        self._own: Path | None = None
        self._own = self.cgroup_of("self")
        for place in (self._own, None):
            self._counts[place] = self._count(place)

    def cause(self, place: Path | None, peak_bytes: int) -> str | None:
        """Return why a process that ended by SIGKILL was killed; None if memory was not the reason.

        Args:
            place: The cgroup that it was in, from `cgroup_of` before it was waited for.
            peak_bytes: The most memory that it has had.
        """
        if place is not None and self._has_increased(place):
            self._has_increased(None)
            return f"{self._limit_of(place)}; {_peak(peak_bytes)}{self._largest_in(place)}"
        if peak_bytes >= _CHOSEN_BYTES_MIN and self._has_increased(None):
            return f"{self._machine()}; {_peak(peak_bytes)}"
        return None

    def _has_increased(self, place: Path | None) -> bool:
        """Take one kill that was not attributed to a process yet, if there is one."""
        known = self._counts.setdefault(place, 0)
        if self._count(place) <= known:
            return False
        self._counts[place] = known + 1
        return True

    def cgroup_of(self, pid: int | str) -> Path | None:
        """Return the directory of the memory cgroup of a process; None if it is unknown."""
        with suppress(OSError):
            for line in (self._proc / str(pid) / "cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                path = path.removesuffix(" (deleted)").strip("/")
                if controllers == "memory":
                    # The first version shows no cgroup of a process that has ended.
                    is_hidden = not path and self._own is not None
                    return self._own if is_hidden else self._root / "memory" / path
                if not controllers and (self._root / "cgroup.controllers").exists():
                    return self._root / path
        return None

    def _count(self, place: Path | None) -> int:
        """Return the number of kills in a cgroup, or on the machine."""
        if place is None:
            return _number_in(self._proc / "vmstat", "oom_kill")
        return max(
            _number_in(place / "memory.events", "oom_kill"),
            _number_in(place / "memory.oom_control", "oom_kill"),
        )

    def _limit_of(self, place: Path) -> str:
        """Describe the limit that a cgroup has reached: the lowest one of it and those above."""
        found: tuple[int, Path] | None = None
        while place not in (self._root, place.parent):
            for name in ("memory.max", "memory.limit_in_bytes"):
                with suppress(OSError, ValueError):
                    limit = int((place / name).read_text())
                    if limit < _NO_LIMIT and (found is None or limit < found[0]):
                        found = limit, place
            place = place.parent
        if found is None:
            return "the kernel's OOM killer has chosen it"
        limit, owner = found
        name = "/" + str(owner.relative_to(self._root)).removeprefix("memory").strip("/")
        size = byte_size_text(limit)
        return f"the kernel's OOM killer has chosen it: cgroup {name} is limited to {size}"

    def _machine(self) -> str:
        total = _number_in(self._proc / "meminfo", "MemTotal:") << 10
        return (
            "the kernel's OOM killer has chosen it: the machine, which has "
            f"{byte_size_text(total)}, ran out of memory"
        )

    def _largest_in(self, place: Path) -> str:
        """Describe the largest process that is left in a cgroup."""
        sizes: list[tuple[int, int]] = []
        with suppress(OSError):
            members = (place / "cgroup.procs").read_text().split()
            sizes = [(self._resident(pid), pid) for pid in map(int, members[:_SEARCHED_MAX])]
        size, pid = max(sizes, default=(0, 0))
        if size < _MIB:
            return ""
        name = "?"
        with suppress(OSError):
            name = (self._proc / str(pid) / "comm").read_text().strip()
        return f"; the largest one left is {name} (pid {pid}) with {byte_size_text(size)}"

    def _resident(self, pid: int) -> int:
        with suppress(OSError, IndexError, ValueError):
            pages = int((self._proc / str(pid) / "statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGESIZE")
        return 0


def _peak(peak_bytes: int) -> str:
    return f"it has had up to {byte_size_text(peak_bytes)}"


def _number_in(path: Path, name: str) -> int:
    """Return the number that follows a name in a file; 0 if the name is missing."""
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            words = line.split()
            if words and words[0] == name:
                return int(words[1])
    return 0
