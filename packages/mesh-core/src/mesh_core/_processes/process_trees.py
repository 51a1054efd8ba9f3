"""The descendants of some processes, found repeatedly at little cost.

A process is a descendant if its parent is one, or if it belongs to the session of the first
process, which every process of a mesh leads. The session finds a process whose parent has exited. A
process stays a descendant once it has been found, so a daemon that leaves its parent and its
session counts too, unless it leaves before the first scan.

The kernel cannot list descendants. A scan therefore lists all pids of the machine, but reads only
the processes that it has not seen before.
"""

import os
from collections.abc import Callable, Iterable

from mesh_core._system import kernel as _kernel

__all__ = ["ProcessTrees"]

# After this number of scans, the pids of other processes are read again, because they may have been
# reused.
_LOOKS_PER_SCAN = 20
# After a longer pause, for example if the supervisor was stopped, any pid may have been reused.
_PAUSE_S_MAX = 5.0


class ProcessTrees:
    """The processes that descend from each of some processes, the roots."""

    def __init__(self) -> None:
        # The root of each known process; None for a process that has none.
        self._root_of: dict[int, int | None] = {}
        self._roots: set[int] = set()
        self._looks_left = 0
        self._looked_at = 0.0

    def add(self, root: int) -> None:
        """Add a root."""
        self._roots.add(root)
        self._root_of[root] = root
        # Its children may have been read before.
        self._looks_left = 0

    def remove(self, root: int) -> None:
        """Remove a root, which has exited."""
        self._roots.discard(root)
        self._keep(lambda known: known != root)

    def look(self, now: float) -> dict[int, list[int]]:
        """Return the pids of each root, which is the first of them, and its descendants.

        Args:
            now: The monotonic time in seconds.
        """
        pids = _listed_pids()
        if now - self._looked_at > _PAUSE_S_MAX:
            self._root_of.clear()
        self._looked_at = now
        if self._looks_left <= 0:
            self._looks_left = _LOOKS_PER_SCAN
            self._keep(lambda known: known is not None)
        self._looks_left -= 1
        for gone in self._root_of.keys() - pids:
            del self._root_of[gone]
        self._read(pids - self._root_of.keys())
        found: dict[int, list[int]] = {root: [root] for root in self._roots}
        for pid, root in self._root_of.items():
            if root is not None and root != pid:
                found[root].append(pid)
        return found

    def _keep(self, is_kept: Callable[[int | None], bool]) -> None:
        """Forget the processes of some roots, or those without one."""
        self._root_of = {pid: root for pid, root in self._root_of.items() if is_kept(root)}

    def _read(self, pids: Iterable[int]) -> None:
        """Find the roots of new processes."""
        parents: dict[int, tuple[int, int]] = {}
        for pid in pids:
            if pid in self._roots:
                self._root_of[pid] = pid
            elif (place := _kernel.parent_and_session(pid)) is not None:
                parents[pid] = place
        for pid in parents:
            self._root_of[pid] = self._found_root(pid, parents)

    def _found_root(self, pid: int, parents: dict[int, tuple[int, int]]) -> int | None:
        """Follow the parents of a new process to one that is known."""
        session = parents[pid][1]
        # Pids that were read at different times might form a cycle.
        for _ in range(len(parents)):
            pid = parents[pid][0]
            if pid not in parents:
                break
        known = self._root_of.get(pid)
        return session if known is None and session in self._roots else known


def _listed_pids() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    except OSError:
        return set()  # No descriptor is left at the moment.
