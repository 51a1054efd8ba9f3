"""The running hosts of a job as meshes, and the meshes that this program has attached to."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mesh_core import Credentials, Future, HostMesh, MeshError, attach_to_workers, this_host
from mesh_core.spi import current_process
from mesh_jobs._backend.report import THIS_HOST, HostDraining, HostReport
from mesh_jobs._errors import JobError
from mesh_jobs._job.host_cache import CachedHosts
from mesh_jobs._state.shared_credentials import share_credentials

__all__ = [
    "JobState",
    "attach_cached_hosts",
    "attach_mesh",
    "attached_hosts",
    "detach_meshes",
    "leaving_here",
]

_SHUTDOWN_S = 15.0
# This limit exceeds the three missed heartbeats after which a host counts as lost, unless
# heartbeats are very slow.
_NOTICE_S = 60.0
_LOOK_S = 0.05
# Workers that wait for a program respond in a fraction of this time.
_ANSWER_S = 3.0


class JobState:
    """The meshes of a job, accessible as attributes (`state.trainers`) and by name."""

    def __init__(self, meshes: Mapping[str, HostMesh]) -> None:
        self.__meshes = dict(meshes)

    def __getattr__(self, name: str) -> HostMesh:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.__meshes[name]
        except KeyError:
            known = ", ".join(self.__meshes) or "none"
            raise AttributeError(f"the job has no mesh {name!r}: it has {known}") from None

    def __getitem__(self, name: str) -> HostMesh:
        if name not in self.__meshes:
            known = ", ".join(self.__meshes) or "none"
            raise KeyError(f"the job has no mesh {name!r}: it has {known}")
        return self.__meshes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__meshes)

    def __len__(self) -> int:
        return len(self.__meshes)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.__meshes]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={mesh.extent}" for name, mesh in self.__meshes.items())
        return f"<JobState {sizes}>"


@dataclass
class _Attached:
    mesh: HostMesh
    # The address and the epoch: a new worker may have the same address as the previous one.
    workers: list[tuple[str, int]]


# A worker accepts one session per program, so two `Job` objects of a program share their attached
# meshes.
_attached: dict[tuple[int, str, str], _Attached] = {}


def attach_mesh(
    allocation_id: str,
    hosts: tuple[HostReport, ...],
    credentials: Credentials,
    gateway: str | None,
    *,
    is_observer: bool = False,
) -> HostMesh:
    """Attach to the hosts of one mesh, or return the mesh if this program is attached already.

    A host whose worker has changed is replaced by a host without processes.

    Raises:
        JobError: The size of the mesh has changed since this program attached to it.
    """
    name = hosts[0].mesh
    addresses = [host.address or "" for host in hosts]
    workers = [(host.address or "", host.epoch) for host in hosts]
    if addresses[0] == THIS_HOST:
        return this_host()
    key = (os.getpid(), allocation_id, name)
    known = _attached.get(key)
    if known is None:
        others = sum(pid == os.getpid() and other != allocation_id for pid, other, _ in _attached)
        share_credentials(credentials, is_attaching=True, others=others)
        mesh = attach_to_workers(
            addresses, credentials=credentials, gateway=gateway, observer=is_observer
        )
        _attached[key] = _Attached(mesh, workers)
        return mesh
    if len(known.workers) != len(workers):
        raise JobError(
            f"mesh {name!r} had {len(known.workers)} hosts when this program attached to it, "
            f"and has {len(workers)} now: call job.detach(), which stops what runs there, and "
            "then job.state()"
        )
    for rank, (before, now) in enumerate(zip(known.workers, workers, strict=True)):
        if before != now:
            _replace(known.mesh, rank, now[0])
            known.workers[rank] = now
    return known.mesh


def leaving_here(allocation_id: str) -> list[HostDraining]:
    """Return the hosts of an allocation that this program uses and that are shutting down."""
    if not any(pid == os.getpid() and other == allocation_id for pid, other, _ in _attached):
        return []
    leaving = current_process.draining_hosts()
    return [
        HostDraining(name, rank, "end", leaving[number], epoch)
        for (pid, other, name), one in list(_attached.items())
        if pid == os.getpid() and other == allocation_id
        for rank, (number, (_, epoch)) in enumerate(
            zip(current_process.host_numbers(one.mesh), one.workers, strict=False)
        )
        if number in leaving
    ]


def attach_cached_hosts(
    allocation_id: str,
    names: Sequence[str],
    cached: CachedHosts,
    credentials: Credentials,
    *,
    is_observer: bool = False,
) -> dict[str, HostMesh] | None:
    """Attach to the workers in the host cache, and wait until they have joined.

    Args:
        allocation_id: The id of the allocation.
        names: The names of the meshes.
        cached: The hosts of all meshes.
        credentials: The credentials of the job.
        is_observer: Whether to attach in an additional session, next to the program that uses the
            hosts.

    Returns:
        The meshes by name. None if a worker does not respond in time or serves another program, in
        which case the other workers are detached again, or if this program is already attached.

    Raises:
        JobError: The program is attached to a job with another certificate authority.
    """
    keys = {name: (os.getpid(), allocation_id, name) for name in names}
    if any(key in _attached for key in keys.values()):
        return None
    others = sum(pid == os.getpid() for pid, _, _ in _attached)
    share_credentials(credentials, is_attaching=True, others=others)
    found: dict[str, _Attached] = {}
    for name in names:
        hosts, worker_ids = cached.of(name)
        addresses = [host.address or "" for host in hosts]
        mesh = attach_to_workers(
            addresses,
            credentials=credentials,
            gateway=cached.gateway,
            observer=is_observer,
            worker_ids=worker_ids,
        )
        found[name] = _Attached(mesh, [(host.address or "", host.epoch) for host in hosts])
    until = time.monotonic() + _ANSWER_S
    try:
        for one in found.values():
            one.mesh.initialized.get(timeout=max(until - time.monotonic(), 0.0))
    except (MeshError, TimeoutError):
        _settle([one.mesh.detach() for one in found.values()])
        return None
    _attached.update((keys[name], one) for name, one in found.items())
    return {name: one.mesh for name, one in found.items()}


def attached_hosts(allocation_id: str) -> dict[str, int]:
    """Return the number of hosts of each mesh of a job that this program is attached to."""
    return {
        mesh: len(one.mesh)
        for (pid, other, mesh), one in list(_attached.items())
        if (pid, other) == (os.getpid(), allocation_id)
    }


def _replace(mesh: HostMesh, rank: int, address: str) -> None:
    """Replace the worker of a rank.

    The scheduler may detect a failure earlier than this program, which has to wait for missed
    heartbeats.
    """
    deadline = time.monotonic() + _NOTICE_S
    while True:
        try:
            mesh.replace(rank, address)
        except RuntimeError as error:
            if type(error) is not RuntimeError or time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def detach_meshes(allocation_id: str) -> None:
    """Stop the processes of this program on a job's hosts; the next program can use the hosts."""
    mine = [key for key in _attached if key[:2] == (os.getpid(), allocation_id)]
    meshes = [_attached.pop(key).mesh for key in mine]
    # A mesh that is still connecting cannot detach: its connection would arrive after the detach
    # request.
    _settle([mesh.initialized for mesh in meshes])
    _settle([mesh.detach() for mesh in meshes])


def _settle(pending: Sequence[Future[Any]]) -> None:
    """Wait for all futures; failures of lost hosts are ignored."""
    for one in pending:
        with suppress(MeshError, TimeoutError):
            one.get(timeout=_SHUTDOWN_S)
