"""What commands of other packages are given, by the context of typer; see `CommandDoor`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh_jobs._cli.host_selection import attached
from mesh_jobs._cli.output import print_json, print_table
from mesh_jobs._extensions.daemon_client import ExtensionDaemonClient
from mesh_jobs._job.lookup import job_load
from mesh_jobs._state.folder import StateFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mesh_core import HostMesh

__all__ = ["JobCommands"]


class JobCommands:
    """The jobs that are applied, for the commands of other packages."""

    @contextmanager
    def attached(
        self, context: str | None, mesh: str | None, timeout: float | None
    ) -> Iterator[Mapping[str, HostMesh]]:
        """Attaches to hosts of a job beside the program that uses them."""
        job = job_load(context)
        names = (
            [one.name for one in job.spec.meshes] if mesh is None else [job.spec.mesh(mesh).name]
        )
        with attached(job, timeout) as state:
            yield {name: state[name] for name in names}

    def hold(
        self, context: str | None, kind: str, name: str, fields: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Gives equipment to the hosts of a job, which they keep when the command has ended."""
        return _held(context).open(kind, name, fields)

    def held(self, context: str | None, kind: str) -> Sequence[Mapping[str, Any]]:
        """Gives the status of all equipment of a kind that is held."""
        return _held(context).statuses(kind)

    def release(self, context: str | None, kind: str, name: str) -> None:
        """Takes equipment that is held from the hosts."""
        _held(context).close(kind, name)

    def print_json(self, value: Any) -> None:
        """Prints a value as one line of JSON."""
        print_json(value)

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Prints a table."""
        print_table(columns, rows)


def _held(context: str | None) -> ExtensionDaemonClient:
    return ExtensionDaemonClient(StateFolder(Path(job_load(context).folder)))
