"""The job that a successor receives: handles of all meshes of the previous program, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from mesh_core._calls.actor import Actor
from mesh_core._errors import MeshError
from mesh_core._meshes.actor_mesh import ActorMesh
from mesh_core._meshes.host_mesh import HostMesh
from mesh_core._meshes.proc_mesh import ProcMesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._errors import SupervisionError

__all__ = ["Job", "Named"]

A = TypeVar("A", bound=Actor)
M = TypeVar("M")


class Named(Mapping[str, M], Generic[M]):
    """Meshes by the names under which they were spawned, in spawn order."""

    def __init__(self, pairs: Sequence[tuple[str, M]], why_not: Mapping[str, Exception]) -> None:
        self._meshes: dict[str, list[M]] = {}
        for name, mesh in pairs:
            self._meshes.setdefault(name, []).append(mesh)
        self._why_not = why_not

    def __getitem__(self, name: str) -> M:
        """Return the mesh with a name.

        Raises:
            KeyError: No mesh has that name, or several have it.
            MeshError: The class of the actors could not be loaded here.
        """
        problem = self._why_not.get(name)
        if problem is not None:
            raise MeshError(
                f"the class of {name!r} cannot be loaded here: {problem}: pass yours to "
                f"job.actor({name!r}, ...)"
            ) from problem
        found = self._meshes.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(f"{len(found)} meshes are named {name!r}: use all_of({name!r})")
        known = ", ".join(repr(one) for one in self._meshes) or "none"
        raise KeyError(f"no mesh is named {name!r}: the job has {known}")

    def all_of(self, name: str) -> tuple[M, ...]:
        """Return all meshes with a name, oldest first."""
        return tuple(self._meshes.get(name, ()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._meshes)

    def __len__(self) -> int:
        return len(self._meshes)

    def __repr__(self) -> str:
        return f"<Named {list(self._meshes)}>"


class Job:
    """A job that this program has taken over and now owns.

    Attributes:
        hosts: The workers; if they were attached in several calls, the workers of the first call.
        host_meshes: The workers, with one mesh for each call that attached some.
        procs: The meshes of processes on them, by name.
        actors: The meshes of actors, by name.
        failures: The failures that were not repaired at the time of the takeover; each counts as
            reported.
        generation: Increases with each program that runs the job.
    """

    def __init__(
        self,
        host_meshes: Sequence[HostMesh],
        procs: Sequence[ProcMesh],
        actors: Sequence[ActorMesh[Any]],
        why_not: Mapping[str, Exception],
        failures: Sequence[SupervisionError],
        generation: int,
    ) -> None:
        self.hosts: HostMesh = host_meshes[0]
        self.host_meshes: tuple[HostMesh, ...] = tuple(host_meshes)
        self.procs: Named[ProcMesh] = Named([(mesh._name, mesh) for mesh in procs], {})
        self.actors: Named[ActorMesh[Any]] = Named([(mesh._name, mesh) for mesh in actors], why_not)
        self.failures: tuple[SupervisionError, ...] = tuple(failures)
        self.generation: int = generation
        self._why_not = why_not

    def actor(self, name: str, cls: type[A]) -> A:
        """Return the actors with a name, typed as their class, so that checkers know its endpoints.

        Args:
            name: The name under which they were spawned.
            cls: Their class in this program.

        Raises:
            KeyError: No mesh has that name, or several have it.
            TypeError: The actors have another class.
        """
        if name in self._why_not:
            # A class from the caller takes precedence over one that could not be loaded.
            (mesh,) = (one._as_class(cls) for one in self.actors.all_of(name))
        else:
            mesh = self.actors[name]
            if not _is_same(mesh._cls, cls):
                raise TypeError(
                    f"{name!r} is a mesh of {mesh._class_name}, not of {cls.__qualname__}: pass "
                    "the class that it was spawned with, or one of its bases"
                )
        typed: Any = mesh
        return typed  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<Job of {len(self.host_meshes)} host meshes, actors {list(self.actors)}>"


def _is_same(found: type, wanted: type) -> bool:
    """Return whether a class is the wanted one, a copy pickled by value, or a subclass of it."""
    wanted_name = (wanted.__module__, wanted.__qualname__)
    return any((one.__module__, one.__qualname__) == wanted_name for one in found.__mro__)
