"""The workers that a program has found serving a job, for the next program on the same hosts.

Who is answered by these very workers need not ask the scheduler where the hosts are.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mesh_core import HostMesh, MeshError
from mesh_jobs._atomic_files import read_json, write_json
from mesh_jobs._backend.report import HostReport, Phase
from mesh_jobs._state.folder import KNOWN_HOSTS, StateFolder
from mesh_jobs._state.record import Record

__all__ = ["KnownHosts", "is_lasting", "known_hosts", "note_hosts"]

_LOOPBACK = re.compile(r"tcp://(127\.|localhost:|\[::1\])")


@dataclass(frozen=True)
class KnownHosts:
    """All hosts of a job, as a program before this one was attached to them.

    Attributes:
        hosts: How they were, by mesh and rank.
        worker_ids: Which worker served each, in the same order.
        gateway: Through which worker they were reached; None for none.
    """

    hosts: tuple[HostReport, ...]
    worker_ids: tuple[str, ...]
    gateway: str | None

    def of(self, mesh: str) -> tuple[tuple[HostReport, ...], tuple[str, ...]]:
        """Gives the hosts of one mesh and their workers, by rank."""
        chosen = [
            (host, worker_id)
            for host, worker_id in zip(self.hosts, self.worker_ids, strict=True)
            if host.mesh == mesh
        ]
        return tuple(host for host, _ in chosen), tuple(worker_id for _, worker_id in chosen)


def is_lasting(gateway: str | None) -> bool:
    """Says whether a later program reaches the hosts as this one: a way that listens here ends."""
    return gateway is None or _LOOPBACK.match(gateway) is None


def known_hosts(folder: StateFolder, record: Record) -> KnownHosts | None:
    """Gives all hosts of a job that is applied; None where some of them are not known."""
    try:
        told = read_json(folder.path / KNOWN_HOSTS)
        if told is None or told["order_id"] != record.order_id or told["ticket"] != record.ticket:
            return None
        found = KnownHosts(
            tuple(HostReport(**{**host, "state": Phase(host["state"])}) for host in told["hosts"]),
            tuple(map(str, told["worker_ids"])),
            told["gateway"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Whatever it is, the scheduler knows.
    places = [(host.mesh, host.rank) for host in found.hosts]
    wanted = [(mesh.name, rank) for mesh in record.spec.meshes for rank in range(mesh.hosts)]
    is_whole = len(found.worker_ids) == len(places) and all(found.worker_ids)
    return found if is_whole and places == wanted else None


def note_hosts(
    folder: StateFolder,
    record: Record,
    meshes: Mapping[str, HostMesh],
    hosts: Sequence[HostReport],
    gateway: str | None,
) -> None:
    """Notes which workers serve, as soon as all have joined; does not wait for that.

    Args:
        folder: The job's folder.
        record: What is applied there.
        meshes: What this program has attached to.
        hosts: How the scheduler has them, by mesh and rank.
        gateway: Through which worker they are reached.
    """
    joined = [mesh.initialized for mesh in meshes.values()]

    def note() -> None:
        # It spares the next program a question: none of this one's business.
        with suppress(MeshError, RuntimeError, OSError, ValueError):
            for one in joined:
                one.get()
            _write(folder, record, meshes, hosts, gateway)

    threading.Thread(target=note, name="mesh-known-hosts", daemon=True).start()


def _write(
    folder: StateFolder,
    record: Record,
    meshes: Mapping[str, HostMesh],
    hosts: Sequence[HostReport],
    gateway: str | None,
) -> None:
    worker_ids = [one for mesh in meshes.values() for one in mesh.worker_ids]
    if not all(worker_ids) or not is_lasting(gateway):
        return
    told = {
        "order_id": record.order_id,
        "ticket": record.ticket,
        "hosts": [host.to_json() for host in hosts],
        "worker_ids": worker_ids,
        "gateway": gateway,
    }
    path = folder.path / KNOWN_HOSTS
    if told == read_json(path):
        return
    with folder.locked_if_free() as is_ours:
        now = folder.read() if is_ours else None
        if now is not None and not now.is_ending and now.ticket == record.ticket:
            write_json(path, told)
