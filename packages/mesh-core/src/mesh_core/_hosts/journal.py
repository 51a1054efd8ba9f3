"""The journal of everything that the program owns, stored by the agents of its hosts.

Small entries are sent after each spawn, and no call waits for them. Any host that survives the
program therefore knows the content of the job, and a successor needs no external store.
"""

from __future__ import annotations

import threading

from mesh_core._hosts.journal_entries import HostsEntry, PlaceEntry, StandbyEntry, encode_entry
from mesh_core._meshes.mesh_entry import MeshEntry
from mesh_core._serialization.wire import proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from mesh_core._hosts.place import Place
    from mesh_core._hosts.standby import StandbyWorker
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.proc_mesh import ProcMesh
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._supervision.policy import RestartPolicy

__all__ = ["Journal", "start_journal"]

# The numbers of standby workers are below the numbers of all hosts.
_FIRST_STANDBY = -(1 << 64)
# The request that spawned a mesh is stored up to this size.
_REQUEST_BYTES_MAX = 1 << 20


_starting = threading.Lock()


def start_journal(runtime: Runtime) -> Journal:
    """Start to record everything that the program owns, and return the journal."""
    with _starting:
        if runtime.journal is None:
            runtime.journal = Journal(runtime)
            runtime.ownership.note_all(runtime.journal)
        return runtime.journal


class Journal:
    """The journal of this program, which its hosts replicate.

    Args:
        runtime: The runtime of the program.
        entries: The entries that a successor has read, by number.
        holders: The hosts that store those entries.
    """

    def __init__(
        self,
        runtime: Runtime,
        entries: Mapping[int, bytes] | None = None,
        holders: Iterable[int] = (),
    ) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._entries: dict[int, bytes] = dict(entries or {})
        self._holders: set[int] = set(holders)

    def note_hosts(self, entry: HostsEntry) -> None:
        """Record workers that were attached."""
        # Meshes have numbers above 0, assigned by their owners.
        self._note(-(entry.hosts[0] << 32), encode_entry(entry))

    def note(self, mesh: ProcMesh | ActorMesh[Any], policy: RestartPolicy) -> None:
        """Record a mesh that was spawned."""
        entry = MeshEntry(mesh, policy, self._runtime, _REQUEST_BYTES_MAX)
        self._note(mesh._uid, encode_entry(entry))

    def note_standby(self, worker: StandbyWorker) -> None:
        """Record a new standby worker."""
        self._note(_number_of(worker), encode_entry(StandbyEntry(worker)))

    def drop_standby(self, worker: StandbyWorker) -> None:
        """Remove a standby worker."""
        self.drop(_number_of(worker))

    def drop(self, number: int) -> None:
        """Remove the entry with a number, if any."""
        with self._lock:
            if self._entries.pop(number, None) is not None:
                self._tell(self._holders, {number: None})

    def joined(self, place: Place) -> None:
        """Record a host, and send it the whole journal, which it stores from now on."""
        entry = PlaceEntry(place)
        with self._lock:
            self._entries[-place.host] = encode_entry(entry)
            self._tell(self._holders, {-place.host: self._entries[-place.host]})
            self._holders.add(place.host)
            self._tell([place.host], self._entries)

    def left(self, host: int) -> None:
        """Stop sending the journal to a host."""
        with self._lock:
            self._holders.discard(host)

    def _note(self, number: int, entry: bytes) -> None:
        with self._lock:
            self._entries[number] = entry
            self._tell(self._holders, {number: entry})

    def _tell(self, hosts: Iterable[int], changes: Mapping[int, bytes | None]) -> None:
        procs = [proc_id(host, 0) for host in hosts]
        if procs:
            self._runtime.tell_agents(procs, "journal", dict(changes))


def _number_of(worker: StandbyWorker) -> int:
    return _FIRST_STANDBY - worker.number
