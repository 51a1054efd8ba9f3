"""The folder of one process, as who reads it sees it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mesh_telemetry._events.endpoint_names import read_endpoints
from mesh_telemetry._events.folders import is_locked
from mesh_telemetry._events.pulse import read_pulse
from mesh_telemetry._events.segments import MESSAGES, Segment, message_counts, segments_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Place", "ProcFolder", "proc_folders"]


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


class ProcFolder:
    """What one process has left.

    Attributes:
        path: The folder.
        spilled: Where the segments are for which there is no more room there, if they are kept;
            the same folder when all that is left of it is there.
        place: Which process.
        is_alive: Whether the process still records.
    """

    def __init__(self, path: Path, spilled: Path | None, place: Place) -> None:
        self.path = path
        self.spilled = spilled
        self.place = place
        self.is_alive = path != spilled and is_locked(path)

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
        pulse = read_pulse(self.path)
        if pulse is None or pulse.happened != pulse.written:
            return True
        messages = segments_of(self.path, MESSAGES) if MESSAGES in families else []
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
        kept = segments_of(self.path, family)
        spilled = [] if self.spilled is None else segments_of(self.spilled, family)
        by_number = {segment.number: segment for segment in [*kept, *spilled]}
        found = [by_number[number] for number in sorted(by_number)]
        last = len(found) - 1
        return [(one, at < last or not self.is_alive) for at, one in enumerate(found)]

    @cached_property
    def _own(self) -> tuple[frozenset[int], frozenset[int]]:
        # Read when it is first needed: by then what was asked for has been written.
        ports, procs = _own(self.path)
        if self.spilled is not None and self.spilled != self.path:
            noted = _own(self.spilled)
            ports, procs = ports | noted[0], procs | noted[1]
        return ports, procs


def proc_folders(
    host_folder: Path, spill: Path | None, known: dict[str, Place] | None = None
) -> list[ProcFolder]:
    """Gives what the processes of a host have left, in the order in which they began.

    Args:
        host_folder: Where their folders are.
        spill: Where the folders are of what had no room there.
        known: What was found before, which need not be read again; it is brought up to date.
    """
    known = {} if known is None else known
    found: dict[str, ProcFolder] = {}
    seen: dict[str, Place] = {}

    def look(folder: Path) -> Place | None:
        place = known.get(folder.name) or _place(folder)
        if place is not None:
            seen[folder.name] = place
        return place

    with suppress(OSError):
        for path in host_folder.iterdir():
            place = look(path)
            if place is not None:
                spilled = None if spill is None else spill / path.name
                found[path.name] = ProcFolder(path, spilled, place)
    if spill is not None:
        with suppress(OSError):
            for path in spill.iterdir():
                place = None if path.name in found else look(path)
                if place is not None:
                    found[path.name] = ProcFolder(path, path, place)
    for gone in known.keys() - seen.keys():
        known.pop(gone, None)
    known.update(seen)
    return sorted(found.values(), key=lambda folder: folder.place.started_us)


def _place(folder: Path) -> Place | None:
    with suppress(OSError, ValueError, TypeError):
        return Place(**json.loads((folder / "place.json").read_text()))
    return None


def _own(folder: Path) -> tuple[frozenset[int], frozenset[int]]:
    ports: set[int] = set()
    procs: set[int] = set()
    with suppress(OSError):
        for line in (folder / "own").read_text().splitlines():
            kind, _, number = line.partition(" ")
            (procs if kind == "proc" else ports).add(int(number))
    return frozenset(ports), frozenset(procs)
