"""The journal of what the program owns, kept by the agents of its hosts.

Small notes follow the spawns on their way, and nobody waits for them. So any host that survives the
program knows what there is, and a successor needs no store outside the job.
"""

from __future__ import annotations

import threading

from mesh_core._failover.journal_entries import (
    HostsEntry,
    MeshEntry,
    PlaceEntry,
    SpareEntry,
    encode_entry,
)
from mesh_core._serialization.wire import proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from mesh_core._hosts.places import Place
    from mesh_core._hosts.standby import Spare
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.mesh import ProcMesh
    from mesh_core._program.runtime import Runtime
    from mesh_core._supervision.policy import RestartPolicy

__all__ = ["Journal"]


# Spares have numbers below those of all hosts.
_FIRST_SPARE = -(1 << 64)


class Journal:
    """What the program owns, as it is noted elsewhere.

    Args:
        runtime: The program's.
        entries: What was noted before, by number: what a successor has read.
        keepers: The hosts that have those notes.
    """

    def __init__(
        self,
        runtime: Runtime,
        entries: Mapping[int, bytes] | None = None,
        keepers: Iterable[int] = (),
    ) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._entries: dict[int, bytes] = dict(entries or {})
        self._keepers: set[int] = set(keepers)

    def note_hosts(self, entry: HostsEntry) -> None:
        """Notes workers that were attached."""
        # Meshes have numbers above 0, made by their owners.
        self._note(-(entry.hosts[0] << 32), encode_entry(entry))

    def note(self, mesh: ProcMesh | ActorMesh[Any], policy: RestartPolicy) -> None:
        """Notes a mesh that was spawned."""
        self._note(mesh._uid, encode_entry(MeshEntry(mesh, policy, self._runtime)))

    def note_spare(self, spare: Spare) -> None:
        """Notes a worker that is kept aside from now on."""
        self._note(_number_of(spare), encode_entry(SpareEntry(spare)))

    def drop_spare(self, spare: Spare) -> None:
        """Notes that a worker is kept aside no more."""
        self.drop(_number_of(spare))

    def drop(self, number: int) -> None:
        """Notes that a mesh is no more, or whatever else was noted."""
        with self._lock:
            if self._entries.pop(number, None) is not None:
                self._tell(self._keepers, {number: None})

    def joined(self, place: Place) -> None:
        """A host keeps the journal from now on, and is noted in it."""
        entry = PlaceEntry(place)
        with self._lock:
            self._entries[-place.host] = encode_entry(entry)
            self._tell(self._keepers, {-place.host: self._entries[-place.host]})
            self._keepers.add(place.host)
            self._tell([place.host], self._entries)

    def left(self, host: int) -> None:
        """A host keeps it no more."""
        with self._lock:
            self._keepers.discard(host)

    def _note(self, number: int, entry: bytes) -> None:
        with self._lock:
            self._entries[number] = entry
            self._tell(self._keepers, {number: entry})

    def _tell(self, hosts: Iterable[int], changes: Mapping[int, bytes | None]) -> None:
        procs = [proc_id(host, 0) for host in hosts]
        if procs:
            self._runtime.tell_agents(procs, "journal", dict(changes))


def _number_of(spare: Spare) -> int:
    return _FIRST_SPARE - spare.number
