"""The implementation of `CommandContext`, which commands of other packages receive from typer."""

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
    """Access to applied jobs for the commands of other packages."""

    @contextmanager
    def attached(
        self, context: str | None, mesh: str | None, timeout: float | None
    ) -> Iterator[Mapping[str, HostMesh]]:
        """Attach to the hosts of a job in an additional session, next to the program."""
        job = job_load(context)
        names = (
            [one.name for one in job.spec.meshes] if mesh is None else [job.spec.mesh(mesh).name]
        )
        with attached(job, timeout) as state:
            yield {name: state[name] for name in names}

    def hold(
        self, context: str | None, kind: str, name: str, fields: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Open an extension on the hosts of a job; it remains open after the command has exited."""
        return _held(context).open(kind, name, fields)

    def held(self, context: str | None, kind: str) -> Sequence[Mapping[str, Any]]:
        """Return the status of all open extensions of a kind."""
        return _held(context).statuses(kind)

    def release(self, context: str | None, kind: str, name: str) -> None:
        """Close an open extension and remove it from the hosts."""
        _held(context).close(kind, name)

    def print_json(self, value: Any) -> None:
        """Print a value as one line of JSON."""
        print_json(value)

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table."""
        print_table(columns, rows)


def _held(context: str | None) -> ExtensionDaemonClient:
    return ExtensionDaemonClient(StateFolder(Path(job_load(context).folder)))
