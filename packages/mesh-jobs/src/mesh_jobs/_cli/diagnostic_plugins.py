"""Examinations of a job's hosts by other packages: `mesh doctor NAME`."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import typer

from mesh_jobs._cli.host_selection import attached
from mesh_jobs._cli.output import print_json
from mesh_jobs._errors import JobError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import HostMesh
    from mesh_jobs._job.job import Job

__all__ = ["GROUP", "Examination", "examine_by"]

GROUP = "mesh.doctors"
"""The entry points of other packages; each is a function that examines a `HostMesh`."""


class Examination(Protocol):
    """The result of an examination; its string form is displayed to users."""

    @property
    def findings(self) -> Sequence[object]:
        """The problems that were found."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""


def examine_by(
    name: str, job: Job, meshes: list[str], timeout: float | None, *, is_json: bool
) -> NoReturn:
    """Run the examination of another package on meshes of a job, print its result, and exit.

    Raises:
        JobError: No installed package provides this examination.
    """
    examine = _load(name)
    with attached(job, timeout, is_quiet=is_json) as state:
        found = {mesh: examine(state[mesh]) for mesh in meshes}
    if is_json:
        print_json({mesh: one.to_json() for mesh, one in found.items()})
    else:
        for mesh, one in found.items():
            sys.stdout.write(f"{mesh}:\n{one}\n" if len(found) > 1 else f"{one}\n")
    raise typer.Exit(1 if any(one.findings for one in found.values()) else 0)


def _load(name: str) -> Callable[[HostMesh], Examination]:
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        known = ", ".join(sorted(points)) or "nothing"
        raise JobError(
            f"no installed package checks {name!r}; available checks: {known}: install "
            f"mesh-{name}, or leave the name out"
        )
    examine: Callable[[HostMesh], Examination] = points[name].load()
    return examine
