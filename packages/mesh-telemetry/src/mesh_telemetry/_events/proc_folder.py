"""The folder of one process from the point of view of a reader."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from mesh_telemetry._events.endpoint_names import read_endpoints
from mesh_telemetry._events.folders import is_locked
from mesh_telemetry._events.segments import MESSAGES, Segment, message_counts, segments_of
from mesh_telemetry._events.write_progress import read_write_progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = [
    "CachedFolder",
    "ProcFolder",
    "ProcIdentity",
    "proc_folders",
    "recorded_names",
    "script_folders",
    "write_identity",
]

# Number of dots in a folder name, which separate slot, process id and a random suffix; the names
# of scripts have one more.
_DOTS = 2
# The beginning of the name of a script's folder.
_SCRIPT = "script."


@dataclass(frozen=True)
class ProcIdentity:
    """The description of a process that it wrote when recording began."""

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
        """The process as one number: host in the upper 32 bits, slot in the lower."""
        return self.host << 32 | self.slot

    @property
    def proc(self) -> str:
        """The process as `host.slot`."""
        return f"{self.host}.{self.slot}"


class OwnIds(NamedTuple):
    """Ports and processes of telemetry itself, from a file of the given length."""

    ports: frozenset[int]
    procs: frozenset[int]
    length: int


class CachedFolder:
    """Contents of a folder that are cached between queries.

    Attributes:
        path: The folder.
        identity: The process.
        own: The numbers of telemetry itself that were read; more may have been added since.
    """

    def __init__(self, path: Path, identity: ProcIdentity) -> None:
        self.path = path
        self.identity = identity
        self.own = OwnIds(frozenset(), frozenset(), 0)


class ProcFolder:
    """The recorded data of one process.

    Args:
        path: The folder.
        spilled: See the attribute.
        identity: See the attribute.
        known: Contents that were read earlier.

    Attributes:
        path: The folder.
        spilled: The folder with evicted segments, if they are kept. Equal to `path` if nothing
            remains of the process elsewhere.
        identity: The process.
        is_alive: Whether the process is still recording.
    """

    def __init__(
        self,
        path: Path,
        spilled: Path | None,
        identity: ProcIdentity,
        known: CachedFolder | None = None,
    ) -> None:
        self.path = path
        self.spilled = spilled
        self.identity = identity
        self._known = known or CachedFolder(path, identity)
        # A string, because building paths is slow.
        self._folder = str(path)
        self.is_alive = path != spilled and is_locked(self._folder)

    @property
    def is_script(self) -> bool:
        """Whether it is the folder of a script."""
        return self.path.name.startswith(_SCRIPT)

    @property
    def own_ports(self) -> frozenset[int]:
        """Ports and meshes of telemetry itself, which appear in no table."""
        return self._own[0]

    @property
    def own_procs(self) -> frozenset[int]:
        """Processes of telemetry itself."""
        return self._own[1]

    def has_more(self, families: Collection[str]) -> bool:
        """Return whether the process has events that are not yet in its files.

        Args:
            families: The families of events that the caller needs.
        """
        if not self.is_alive:
            return False
        progress = read_write_progress(self._folder)
        if progress is None or progress.event_count != progress.written_count:
            return True
        messages = segments_of(self._folder, MESSAGES) if MESSAGES in families else []
        counts = message_counts(messages[-1].path) if messages else None
        if counts is None:
            return False
        _, endpoint_count, waiting_count = counts
        return waiting_count > 0 or endpoint_count > progress.endpoint_count

    def has_endpoint_names(self) -> bool:
        """Return whether `endpoint_names` is complete for the message records so far.

        The core writes records as messages happen; the names follow within a tenth of a second.
        """
        if not self.is_alive:
            return True
        # The core may just have begun the last file.
        messages = segments_of(self._folder, MESSAGES)[-2:]
        counts = [message_counts(segment.path) for segment in messages]
        progress = read_write_progress(self._folder)
        endpoint_count = max((one[1] for one in counts if one is not None), default=0)
        return progress is None or endpoint_count <= progress.endpoint_count

    def endpoint_names(self) -> list[str]:
        """Return the endpoint names by their number in the message records so far."""
        kept = read_endpoints(self.path)
        spilled = [] if self.spilled is None else read_endpoints(self.spilled)
        return max(kept, spilled, key=len)

    def segments(self, family: str) -> list[tuple[Segment, bool]]:
        """Return the segments, oldest first, each with whether it is complete."""
        # In this order, a segment that is moved concurrently is found twice; in the reverse order
        # it could be missed.
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
        # Read on first access, when everything that the query requested has been written.
        known = self._known.own = _own(self._folder, self._known.own)
        ports, procs = known.ports, known.procs
        if self.spilled is not None and self.spilled != self.path:
            noted = _own(str(self.spilled))
            ports, procs = ports | noted.ports, procs | noted.procs
        return ports, procs


def proc_folders(
    host_folder: Path, spill: Path | None, known: dict[tuple[Path, str], CachedFolder] | None = None
) -> list[ProcFolder]:
    """Return the folders of all recorded processes of a host, ordered by start time.

    Args:
        host_folder: The folder of the host.
        spill: The folder with the evicted segments of the host.
        known: Cached contents, which are not read again; updated in place.
    """
    known = {} if known is None else known
    found: dict[str, ProcFolder] = {}
    seen: dict[tuple[Path, str], CachedFolder] = {}

    def find(parent: Path, name: str) -> CachedFolder | None:
        key = parent, name
        there = known.get(key)
        if there is None:
            path = parent / name
            identity = _read_identity(path)
            there = None if identity is None else CachedFolder(path, identity)
        if there is not None:
            seen[key] = there
        return there

    for name in _names(host_folder):
        there = find(host_folder, name)
        if there is not None:
            spilled = None if spill is None else spill / name
            found[name] = ProcFolder(there.path, spilled, there.identity, there)
    if spill is not None:
        for name in _names(spill):
            there = None if name in found else find(spill, name)
            if there is not None:
                found[name] = ProcFolder(there.path, there.path, there.identity, there)
    for gone in known.keys() - seen.keys():
        known.pop(gone, None)
    known.update(seen)
    return sorted(found.values(), key=lambda folder: folder.identity.started_us)


def write_identity(folder: Path, fields: Mapping[str, object]) -> None:
    """Write the description of this process, which makes its folder visible to readers.

    Args:
        folder: The folder of the process.
        fields: The fields of `ProcIdentity` except those that this function knows.
    """
    own = {
        "pid": os.getpid(),
        "started_us": time.time_ns() // 1000,
        "token": int.from_bytes(os.urandom(8), "little"),
    }
    temporary = folder / "identity.new"
    temporary.write_text(json.dumps({**fields, **own}))
    temporary.rename(folder / "identity.json")


def script_folders(host_folder: Path) -> list[ProcFolder]:
    """Return the folders of scripts that processes of a host have started.

    They have collectives, and no events.
    """
    found = []
    with suppress(OSError):
        for name in os.listdir(host_folder):
            if name.startswith(_SCRIPT):
                path = host_folder / name
                identity = _read_identity(path)
                if identity is not None:
                    found.append(ProcFolder(path, None, identity))
    return sorted(found, key=lambda folder: folder.identity.started_us)


def recorded_names(host_folder: str) -> list[str]:
    """Return the names of the folders of processes and scripts of a host."""
    with suppress(OSError):
        return [name for name in os.listdir(host_folder) if name.count(".") in (_DOTS, _DOTS + 1)]
    return []


def _names(folder: Path) -> list[str]:
    """Return the names that may be folders of processes."""
    with suppress(OSError):
        return [name for name in os.listdir(folder) if name.count(".") == _DOTS]
    return []


def _read_identity(folder: Path) -> ProcIdentity | None:
    with suppress(OSError, ValueError, TypeError):
        return ProcIdentity(**json.loads((folder / "identity.json").read_text()))
    return None


def _own(folder: str, known: OwnIds | None = None) -> OwnIds:
    """Read the numbers of telemetry itself; the file is only ever appended to."""
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
    return OwnIds(frozenset(ports), frozenset(procs), length)
