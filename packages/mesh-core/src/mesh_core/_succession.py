"""From the first worker that a successor was granted to the whole job."""

from __future__ import annotations

from typing import Any

from mesh_core import _runtime as current
from mesh_core._actor_mesh import ActorMesh
from mesh_core._address import Address
from mesh_core._attach import joined, obituary
from mesh_core._config import effective
from mesh_core._core import Targets
from mesh_core._failure import FailureDetail, failure_error
from mesh_core._job import Job
from mesh_core._journal import Journal
from mesh_core._journal_entries import HostsEntry, MeshEntry, decode_entry
from mesh_core._mesh import ProcMesh
from mesh_core._take_over import TakeOverError
from mesh_core._wire import HOST_DIED, PROC_DIED, proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._claims import Claim, Taken
    from mesh_core._core import Message
    from mesh_core._errors import SupervisionError
    from mesh_core._journal_entries import Entry
    from mesh_core._runtime import Runtime

__all__ = ["Succession"]

ROOT = 0
# Slots of the local host that the program before may have used without a note of it.
_SLOTS_APART = 256


class Succession:
    """From the first worker to the whole job."""

    def __init__(
        self, runtime: Runtime, claim: Claim, first: Taken, addresses: Sequence[Address]
    ) -> None:
        self._runtime = runtime
        self._claim = claim
        self._first = first
        self._addresses = addresses
        self._config = effective()

    def run(self) -> Job:
        """Takes the other workers, and then what the journal says that there is."""
        self._join(self._first)
        notes = self._read_journal()
        entries = {number: decode_entry(body) for number, body in notes.items()}
        host_entries = [one for one in entries.values() if isinstance(one, HostsEntry)]
        taken = self._take_others(host_entries)
        self._skip_slots(entries.values())
        procs: list[ProcMesh] = []
        actors: list[ActorMesh[Any]] = []
        why_not: dict[str, Exception] = {}
        for number, entry in entries.items():
            if isinstance(entry, HostsEntry):
                continue
            if _is_local(entry):
                # It has died with the program.
                del notes[number]
                continue
            mesh, problem = entry.mesh()
            if entry.order is not None:
                body, parts, window = entry.order
                buffers = [memoryview(part) for part in parts]
                self._runtime.spawn_orders[number] = (body, buffers, window)
            self._runtime.ownership.spawned(ROOT, mesh, entry.policy)
            if isinstance(mesh, ActorMesh):
                actors.append(mesh)
            else:
                procs.append(mesh)
            if problem is not None:
                why_not[entry.name] = problem
        self._runtime.journal = Journal(self._runtime, notes, taken)
        failures = self._take_stock(procs, actors)
        host_meshes = [entry.mesh() for entry in host_entries]
        generation = self._runtime.generation
        return Job(host_meshes, procs, actors, why_not, failures, generation)

    def _join(self, taken: Taken) -> None:
        grant = taken.grant
        heartbeat_s = self._config.heartbeat_s
        joined(self._runtime, grant.host, taken.routes, grant.host_name, heartbeat_s)

    def _read_journal(self) -> dict[int, bytes]:
        agent = proc_id(self._first.grant.host, 0)
        limit_s = self._config.attach_timeout_s
        notes: dict[int, bytes] | None = self._runtime.ask_agent(
            agent, "read_journal", timeout=limit_s
        )
        if notes is None:
            raise TakeOverError(
                f"the worker at {self._first.address} was lost while it was taken over: try again"
            )
        return notes

    def _take_others(self, entries: Sequence[HostsEntry]) -> list[int]:
        """Takes the rest of the workers; gives the numbers of all hosts that there are."""
        places = {
            host: Address.parse(address)
            for entry in entries
            for host, address in zip(entry.hosts, entry.addresses, strict=True)
        }
        places.pop(self._first.grant.host, None)
        others = {*self._addresses, *places.values()} - {self._first.address}
        silence_s = 3 * self._config.heartbeat_s
        taken, whys = self._claim.take_others(
            sorted(others, key=str), self._config.host_lease_s, silence_s
        )
        for one in taken:
            self._join(one)
            places.pop(one.grant.host, None)
        numbers = [self._first.grant.host, *(one.grant.host for one in taken)]
        known = max(host for entry in entries for host in entry.hosts)
        self._runtime.new_hosts(known)
        for host, address in places.items():
            why = next((why for why in whys if str(address) in why), "it is not to be had")
            # As one that was there and is lost: the others hear of it.
            self._runtime.routes[host] = []
            self._runtime.engine.host_gone(host, obituary(self._runtime, str(address), why))
        return numbers

    def _skip_slots(self, entries: Any) -> None:
        """Leaves out the slots of this host that processes of the program before have had."""
        last = 0
        for entry in entries:
            if isinstance(entry, MeshEntry) and _is_local(entry):
                last = max(last, entry.table.hosts[0][1] + entry.table.per_host)
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.reserve(last + _SLOTS_APART)

    def _take_stock(
        self, procs: Sequence[ProcMesh], actors: Sequence[ActorMesh[Any]]
    ) -> list[SupervisionError]:
        """Tells all processes who owns them now; gives what has failed and is not mended."""
        meshes: list[ProcMesh | ActorMesh[Any]] = [*procs, *actors]
        places = {mesh._proc_of(rank) for mesh in meshes for rank in range(len(mesh))}
        if not places:
            return []
        targets = Targets([(proc, at) for at, proc in enumerate(sorted(places))])
        reply = self._runtime.call_agents(targets, "root_back")
        answers: list[Message] = self._runtime.engine.wait(reply, None) or []
        found: list[SupervisionError] = []
        for answer in answers:
            if answer.code == 0:
                for uid, rank, body in current.value_of(answer):
                    hit = [mesh for mesh in meshes if mesh._uid == uid]
                    self._runtime.ownership.actor_failed(uid, rank, body)
                    found += self._given(body, [(mesh, rank) for mesh in hit])
            elif answer.code in (PROC_DIED, HOST_DIED) and answer.body:
                proc, body = answer.from_proc, answer.body
                self._runtime.ownership.proc_died(proc, body)
                found += self._given(
                    body, [(mesh, rank) for mesh in meshes for rank in mesh._ranks_on(proc)]
                )
        return found

    def _given(
        self, body: bytes, hit: Sequence[tuple[ProcMesh | ActorMesh[Any], int]]
    ) -> list[SupervisionError]:
        """Takes a failure off the list: whoever takes over is given it."""
        detail = FailureDetail.decode(body)
        ownership = self._runtime.ownership
        is_mended = any(ownership.brings_back(mesh) for mesh, _ in hit)
        if not detail.failure_id or not hit or is_mended:
            return []
        ownership.observed(detail.failure_id)
        mesh, rank = hit[0]
        where = {
            "mesh_name": mesh._name,
            "actor": mesh._class_name,
            "rank": rank,
            "point": dict(mesh._point(rank)),
        }
        return [failure_error(detail, **where)]


def _is_local(entry: Entry) -> bool:
    """Says whether a mesh was on the machine of the program, under no worker."""
    return isinstance(entry, MeshEntry) and entry.table.hosts[0][0] == 0
