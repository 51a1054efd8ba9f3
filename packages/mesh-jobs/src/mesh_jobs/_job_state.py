"""The hosts of a job that are up, as meshes, and what of them this program has attached to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mesh_core import Credentials, Future, HostMesh, MeshError, attach_to_workers, this_host
from mesh_jobs._errors import JobError
from mesh_jobs._program_trust import trusted
from mesh_jobs._report import THIS_HOST, HostReport

__all__ = ["JobState", "attach_mesh", "detach_meshes"]

_SHUTDOWN_S = 15.0


class JobState:
    """The meshes of a job, each as an attribute and by its name: `state.trainers`."""

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
    addresses: list[str]


# A worker serves one program once: two `Job` objects of a program share what it has attached to.
_attached: dict[tuple[int, str, str], _Attached] = {}


def attach_mesh(
    order_id: str,
    hosts: tuple[HostReport, ...],
    credentials: Credentials,
    gateway: str | None,
) -> HostMesh:
    """Attaches to the hosts of one mesh, or gives what this program has attached to already.

    A host that has another worker than before takes its place with an empty mesh of processes.

    Raises:
        JobError: The mesh has another size than when this program attached to it.
    """
    name = hosts[0].mesh
    addresses = [host.address or "" for host in hosts]
    if addresses[0] == THIS_HOST:
        return this_host()
    key = (os.getpid(), order_id, name)
    known = _attached.get(key)
    if known is None:
        others = sum(pid == os.getpid() and other != order_id for pid, other, _ in _attached)
        trusted(credentials, is_attaching=True, others=others)
        mesh = attach_to_workers(addresses, credentials=credentials, gateway=gateway)
        _attached[key] = _Attached(mesh, addresses)
        return mesh
    if len(known.addresses) != len(addresses):
        raise JobError(
            f"mesh {name!r} had {len(known.addresses)} hosts when this program attached to it, "
            f"and has {len(addresses)} now: call job.detach(), which stops what runs there, and "
            "then job.state()"
        )
    for rank, (before, now) in enumerate(zip(known.addresses, addresses, strict=True)):
        if before != now:
            known.mesh.replace(rank, now)
            known.addresses[rank] = now
    return known.mesh


def detach_meshes(order_id: str) -> None:
    """Stops what this program runs on a job's hosts, and leaves them to the next program."""
    mine = [key for key in _attached if key[:2] == (os.getpid(), order_id)]
    meshes = [_attached.pop(key).mesh for key in mine]
    # Who is still on the way to a worker cannot leave it: it would arrive after the good-bye.
    _settle([mesh.initialized for mesh in meshes])
    _settle([mesh.shutdown() for mesh in meshes])


def _settle(pending: Sequence[Future[Any]]) -> None:
    """Waits for all; a host that is lost already needs neither welcome nor good-bye."""
    for one in pending:
        with suppress(MeshError, TimeoutError):
            one.get(timeout=_SHUTDOWN_S)
