"""Takeover of a whole job, starting at the first worker that was granted to the successor."""

from __future__ import annotations

from typing import Any

from mesh_core._configuration.config import effective
from mesh_core._core import Targets
from mesh_core._failover.attempt import TakeOverAttempt
from mesh_core._failover.errors import TakeOverError
from mesh_core._failover.job import Job
from mesh_core._hosts.address import Address
from mesh_core._hosts.joining import joined
from mesh_core._hosts.journal import Journal
from mesh_core._hosts.journal_entries import HostsEntry, PlaceEntry, StandbyEntry, decode_entry
from mesh_core._hosts.place import Place
from mesh_core._meshes.actor_mesh import ActorMesh
from mesh_core._meshes.mesh_entry import MeshEntry
from mesh_core._meshes.proc_mesh import ProcMesh
from mesh_core._program.root import start_root
from mesh_core._runtime.job_credentials import set_credentials
from mesh_core._runtime.runtime import is_running, runtime, value_of
from mesh_core._security.errors import CredentialsError
from mesh_core._serialization.wire import HOST_DIED, PROC_DIED, proc_id
from mesh_core._supervision.failure import FailureDetail, failure_error, host_exit_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._core import Keys, Message
    from mesh_core._errors import SupervisionError
    from mesh_core._failover.attempt import TakenWorker
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._security.credentials import Credentials

__all__ = ["take_over_job"]

ROOT = 0
_HEARTBEATS = 3


def take_over_job(workers: Sequence[str], credentials: Credentials, gateway: str | None) -> Job:
    """Take over a job from the workers that keep it; see `take_over`."""
    if isinstance(workers, str):
        raise ValueError(f"workers is a single string, {workers!r}: pass a list of addresses")
    addresses = [Address.parse_reachable(worker) for worker in workers]
    if not addresses:
        raise ValueError("no workers to take over: give at least one address")
    if is_running():
        raise RuntimeError(
            "this program already runs a job: take over before anything else, or after "
            "shutdown_context()"
        )
    way = None if gateway is None else Address.parse_reachable(gateway)
    config = effective()
    claim = TakeOverAttempt(credentials._keys, config.host_lease_s, way)
    try:
        first = claim.take_first(addresses, config.attach_timeout_s)
    except ValueError as error:
        raise CredentialsError(str(error)) from None
    program = start_root(first.grant.job, first.grant.token, first.grant.generation)
    current = runtime()
    try:
        set_credentials(current, credentials._keys)
        return Failover(current, claim, first, addresses, credentials._keys).run()
    except BaseException:
        # The workers keep the job again when the lease of this program has expired.
        current.places.forget()
        program.shut_down(0.0, is_failed=True)
        raise


class Failover:
    """Takes over a whole job, starting at its first worker."""

    def __init__(
        self,
        runtime: Runtime,
        claim: TakeOverAttempt,
        first: TakenWorker,
        addresses: Sequence[Address],
        keys: Keys,
    ) -> None:
        self._runtime = runtime
        self._claim = claim
        self._first = first
        self._addresses = addresses
        self._keys = keys
        self._config = effective()

    def run(self) -> Job:
        """Take over the other workers, and then everything in the journal."""
        self._join(self._first)
        notes = self._read_journal()
        entries = {number: decode_entry(body) for number, body in notes.items()}
        host_entries = [one for one in entries.values() if isinstance(one, HostsEntry)]
        self._take_others([one for one in entries.values() if isinstance(one, PlaceEntry)])
        procs: list[ProcMesh] = []
        actors: list[ActorMesh[Any]] = []
        why_not: dict[str, Exception] = {}
        for number, entry in entries.items():
            if not isinstance(entry, MeshEntry):
                continue
            if _is_local(entry):
                # The mesh died with the program.
                del notes[number]
                continue
            mesh, problem = entry.adopt(self._runtime, ROOT)
            if isinstance(mesh, ActorMesh):
                actors.append(mesh)
            else:
                procs.append(mesh)
            if problem is not None:
                why_not[entry.name] = problem
        self._runtime.journal = Journal(self._runtime, notes, self._runtime.places.living())
        for entry in entries.values():
            if isinstance(entry, StandbyEntry):
                self._hold_standby(entry)
        failures = self._take_stock(procs, actors)
        host_meshes = [entry.mesh() for entry in host_entries]
        generation = self._runtime.generation
        return Job(host_meshes, procs, actors, why_not, failures, generation)

    def _join(self, taken: TakenWorker) -> None:
        grant = taken.grant
        place = Place(
            grant.host, taken.address, taken.gateway, self._keys, self._config, epoch=grant.epoch
        )
        self._runtime.places.restore(place)
        joined(self._runtime, place, taken.route, grant.host_name)

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

    def _take_others(self, entries: Sequence[PlaceEntry]) -> None:
        """Take over the remaining workers; workers that cannot be taken over are dead."""
        noted = {entry.host: entry for entry in entries}
        gateways: dict[Address, Address | None] = dict.fromkeys(self._addresses)
        for entry in entries:
            gateways[Address.parse(entry.address)] = _gateway(entry)
        gateways.pop(self._first.address, None)
        silence_s = _HEARTBEATS * self._config.heartbeat_s
        taken, whys = self._claim.take_others(gateways, self._config.host_lease_s, silence_s)
        for one in taken:
            self._join(one)
        for host in {self._first.grant.host, *(one.grant.host for one in taken)}:
            known = noted.pop(host, None)
            if known is not None:
                self._runtime.places.of(host).orphan_grace_s = known.orphan_grace_s
        for host, entry in noted.items():
            why = next((why for why in whys if entry.address in why), "it is unavailable")
            address = Address.parse(entry.address)
            gateway = self._claim.gateway_to(address, _gateway(entry))
            place = Place(
                host, address, gateway, self._keys, self._config, entry.orphan_grace_s, entry.epoch
            )
            self._runtime.places.restore(place)
            self._runtime.engine.declare_host_dead(
                host, host_exit_report(self._runtime, entry.address, why)
            )

    def _hold_standby(self, entry: StandbyEntry) -> None:
        address = Address.parse(entry.address)
        gateway = self._claim.gateway_to(address, _gateway(entry))
        self._runtime.places.standby.hold(
            address, gateway, self._keys, self._config, entry.orphan_grace_s, entry.number
        )

    def _take_stock(
        self, procs: Sequence[ProcMesh], actors: Sequence[ActorMesh[Any]]
    ) -> list[SupervisionError]:
        """Notify all processes of their new owner, and return failures that are not repaired."""
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
                for uid, rank, body in value_of(answer):
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
        """Mark a failure as observed, because the caller of the takeover gets it."""
        detail = FailureDetail.decode(body)
        ownership = self._runtime.ownership
        will_restart = any(ownership.restarts_procs_of(mesh) for mesh, _ in hit)
        if not detail.failure_id or not hit or will_restart:
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


def _gateway(entry: PlaceEntry | StandbyEntry) -> Address | None:
    return None if entry.gateway is None else Address.parse(entry.gateway)


def _is_local(entry: MeshEntry) -> bool:
    """Return whether a mesh ran on the program's machine without a worker."""
    return entry.table.hosts[0][0] == 0
