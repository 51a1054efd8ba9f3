"""A cache of the workers that served a job, for the next program that uses the same hosts.

A program that reaches exactly these workers does not query the scheduler for its hosts.
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
from mesh_jobs._state.folder import HOST_CACHE_FILE, StateFolder
from mesh_jobs._state.record import Record

__all__ = ["CachedHosts", "cache_hosts", "is_reusable", "load_cached_hosts"]

_LOOPBACK = re.compile(r"tcp://(127\.|localhost:|\[::1\])")


@dataclass(frozen=True)
class CachedHosts:
    """The hosts of a job, as an earlier program attached to them.

    Attributes:
        hosts: The hosts, ordered by mesh and rank.
        worker_ids: The id of the worker of each host, in the same order.
        gateway: The address of the gateway to the workers; None if the program reached them
            directly.
    """

    hosts: tuple[HostReport, ...]
    worker_ids: tuple[str, ...]
    gateway: str | None

    def of(self, mesh: str) -> tuple[tuple[HostReport, ...], tuple[str, ...]]:
        """Return the hosts of one mesh and the ids of their workers, ordered by rank."""
        chosen = [
            (host, worker_id)
            for host, worker_id in zip(self.hosts, self.worker_ids, strict=True)
            if host.mesh == mesh
        ]
        return tuple(host for host, _ in chosen), tuple(worker_id for _, worker_id in chosen)


def is_reusable(gateway: str | None) -> bool:
    """Return whether a later program can use the gateway; one on loopback ends with its program."""
    return gateway is None or _LOOPBACK.match(gateway) is None


def load_cached_hosts(folder: StateFolder, record: Record) -> CachedHosts | None:
    """Return the cached hosts of an applied job; None if the cache is stale or incomplete."""
    try:
        stored = read_json(folder.path / HOST_CACHE_FILE)
        if (
            stored is None
            or stored["allocation_id"] != record.allocation_id
            or stored["allocation"] != record.allocation
        ):
            return None
        found = CachedHosts(
            tuple(
                HostReport(**{**host, "state": Phase(host["state"])}) for host in stored["hosts"]
            ),
            tuple(map(str, stored["worker_ids"])),
            stored["gateway"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # An unreadable cache is not an error: the scheduler is queried instead.
    places = [(host.mesh, host.rank) for host in found.hosts]
    wanted = [(mesh.name, rank) for mesh in record.spec.meshes for rank in range(mesh.hosts)]
    is_whole = len(found.worker_ids) == len(places) and all(found.worker_ids)
    return found if is_whole and places == wanted else None


def cache_hosts(
    folder: StateFolder,
    record: Record,
    meshes: Mapping[str, HostMesh],
    hosts: Sequence[HostReport],
    gateway: str | None,
) -> None:
    """Write the host cache once all hosts have joined; does not block.

    Args:
        folder: The state folder of the job.
        record: The record of the job.
        meshes: The meshes that this program attached to.
        hosts: The hosts as reported by the scheduler, ordered by mesh and rank.
        gateway: The address of the gateway to the workers, if any.
    """
    joined = [mesh.initialized for mesh in meshes.values()]

    def note() -> None:
        # The cache only speeds up the next program, so a failure does not affect this one.
        with suppress(MeshError, RuntimeError, OSError, ValueError):
            for one in joined:
                one.get()
            _write(folder, record, meshes, hosts, gateway)

    threading.Thread(target=note, name="mesh-host-cache", daemon=True).start()


def _write(
    folder: StateFolder,
    record: Record,
    meshes: Mapping[str, HostMesh],
    hosts: Sequence[HostReport],
    gateway: str | None,
) -> None:
    worker_ids = [one for mesh in meshes.values() for one in mesh.worker_ids]
    if not all(worker_ids) or not is_reusable(gateway):
        return
    stored = {
        "allocation_id": record.allocation_id,
        "allocation": record.allocation,
        "hosts": [host.to_json() for host in hosts],
        "worker_ids": worker_ids,
        "gateway": gateway,
    }
    path = folder.path / HOST_CACHE_FILE
    if stored == read_json(path):
        return
    with folder.locked_if_free() as is_ours:
        now = folder.read() if is_ours else None
        if now is not None and not now.is_ending and now.allocation == record.allocation:
            write_json(path, stored)
