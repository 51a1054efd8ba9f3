"""The folder of one process, as who reads it sees it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from mesh_telemetry._events.endpoint_names import read_endpoints
from mesh_telemetry._events.folders import is_locked
from mesh_telemetry._events.pulse import read_pulse
from mesh_telemetry._events.segments import MESSAGES, Segment, message_counts, segments_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["KnownFolder", "Place", "ProcFolder", "proc_folders"]

# In the name of a folder, between slot, process and something random.
_DOTS = 2


@dataclass(frozen=True)
class Place:
    """What a process has said of itself when it began to record."""

    host: int
    host_name: str
    slot: int
    incarnation: int
    mesh: int
    mesh_name: str
    rank: int
    pid: int
    started_us: int
    token: int

    @property
    def number(self) -> int:
        """The process, packed: host in the upper 32 bits, slot in the lower."""
        return self.host << 32 | self.slot

    @property
    def proc(self) -> str:
        """The process as `host.slot`."""
        return f"{self.host}.{self.slot}"


class OwnNumbers(NamedTuple):
    """Ports and processes of telemetry itself, as a file says that was so long."""

    ports: frozenset[int]
    procs: frozenset[int]
    length: int


class KnownFolder:
    """What needs not be read again of a folder when the next question comes.

    Attributes:
        path: The folder.
        place: Which process.
        own: What was read of its own numbers; more may have come.
    """

    def __init__(self, path: Path, place: Place) -> None:
        self.path = path
        self.place = place
        self.own = OwnNumbers(frozenset(), frozenset(), 0)


class ProcFolder:
    """What one process has left.

    Args:
        path: The folder.
        spilled: As below.
        place: As below.
        known: What was read of it before.

    Attributes:
        path: The folder.
        spilled: Where the segments are for which there is no more room there, if they are kept;
            the same folder when all that is left of it is there.
        place: Which process.
        is_alive: Whether the process still records.
    """

    def __init__(
        self, path: Path, spilled: Path | None, place: Place, known: KnownFolder | None = None
    ) -> None:
        self.path = path
        self.spilled = spilled
        self.place = place
        self._known = known or KnownFolder(path, place)
        # Text, as paths are slow to put together.
        self._folder = str(path)
        self.is_alive = path != spilled and is_locked(self._folder)

    @property
    def own_ports(self) -> frozenset[int]:
        """Ports and meshes of telemetry itself, which are no part of any table."""
        return self._own[0]

    @property
    def own_procs(self) -> frozenset[int]:
        """Processes of telemetry itself."""
        return self._own[1]

    def has_more(self, families: Collection[str]) -> bool:
        """Says whether something has happened that is not in its files yet.

        Args:
            families: Of which families of events this is asked.
        """
        if not self.is_alive:
            return False
        pulse = read_pulse(self._folder)
        if pulse is None or pulse.happened != pulse.written:
            return True
        messages = segments_of(self._folder, MESSAGES) if MESSAGES in families else []
        counts = message_counts(messages[-1].path) if messages else None
        if counts is None:
            return False
        _, endpoint_count, waiting_count = counts
        return waiting_count > 0 or endpoint_count > pulse.endpoint_count

    def endpoint_names(self) -> list[str]:
        """Gives the endpoints by their numbers in its records of messages, so far."""
        kept = read_endpoints(self.path)
        spilled = [] if self.spilled is None else read_endpoints(self.spilled)
        return max(kept, spilled, key=len)

    def segments(self, family: str) -> list[tuple[Segment, bool]]:
        """Gives its segments, oldest first, and of each whether nothing more comes into it."""
        # In this order: one that is moved meanwhile is found twice, and not at all the other way.
        kept = segments_of(self._folder, family)
        found = kept
        if self.spilled is not None:
            spilled = segments_of(self.spilled, family)
            by_number = {segment.number: segment for segment in [*kept, *spilled]}
            found = [by_number[number] for number in sorted(by_number)]
        last = len(found) - 1
        return [(one, at < last or not self.is_alive) for at, one in enumerate(found)]

    @cached_property
    def _own(self) -> tuple[frozenset[int], frozenset[int]]:
        # Read when it is first needed: by then what was asked for has been written.
        known = self._known.own = _own(self._folder, self._known.own)
        ports, procs = known.ports, known.procs
        if self.spilled is not None and self.spilled != self.path:
            noted = _own(str(self.spilled))
            ports, procs = ports | noted.ports, procs | noted.procs
        return ports, procs


def proc_folders(
    host_folder: Path, spill: Path | None, known: dict[tuple[Path, str], KnownFolder] | None = None
) -> list[ProcFolder]:
    """Gives what the processes of a host have left, in the order in which they began.

    Args:
        host_folder: Where their folders are.
        spill: Where the folders are of what had no room there.
        known: What was found before, which need not be read again; it is brought up to date.
    """
    known = {} if known is None else known
    found: dict[str, ProcFolder] = {}
    seen: dict[tuple[Path, str], KnownFolder] = {}

    def look(parent: Path, name: str) -> KnownFolder | None:
        key = parent, name
        there = known.get(key)
        if there is None:
            path = parent / name
            place = _place(path)
            there = None if place is None else KnownFolder(path, place)
        if there is not None:
            seen[key] = there
        return there

    for name in _names(host_folder):
        there = look(host_folder, name)
        if there is not None:
            spilled = None if spill is None else spill / name
            found[name] = ProcFolder(there.path, spilled, there.place, there)
    if spill is not None:
        for name in _names(spill):
            there = None if name in found else look(spill, name)
            if there is not None:
                found[name] = ProcFolder(there.path, there.path, there.place, there)
    for gone in known.keys() - seen.keys():
        known.pop(gone, None)
    known.update(seen)
    return sorted(found.values(), key=lambda folder: folder.place.started_us)


def _names(folder: Path) -> list[str]:
    """Gives the names of what may be folders of processes."""
    with suppress(OSError):
        return [name for name in os.listdir(folder) if name.count(".") == _DOTS]
    return []


def _place(folder: Path) -> Place | None:
    with suppress(OSError, ValueError, TypeError):
        return Place(**json.loads((folder / "place.json").read_text()))
    return None


def _own(folder: str, known: OwnNumbers | None = None) -> OwnNumbers:
    """Reads the numbers of telemetry itself, to which others are only added."""
    path = f"{folder}/own"
    ports: set[int] = set()
    procs: set[int] = set()
    length = 0
    with suppress(OSError):
        if known is not None and os.stat(path).st_size == known.length:
            return known
        with open(path) as file:
            content = file.read()
        length = len(content)
        for line in content.splitlines():
            kind, _, number = line.partition(" ")
            (procs if kind == "proc" else ports).add(int(number))
    return OwnNumbers(frozenset(ports), frozenset(procs), length)
