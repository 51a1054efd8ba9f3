"""The interface that commands of other packages use to access applied jobs and to print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mesh_core import HostMesh

__all__ = ["CommandDoor"]


class CommandDoor(Protocol):
    """The object of the `typer.Context` that a command receives.

    A context is the name of a job; None means `default`.
    """

    def attached(
        self, context: str | None, mesh: str | None, timeout: float | None
    ) -> AbstractContextManager[Mapping[str, HostMesh]]:
        """Attach to the hosts of a job, next to the program that uses them.

        The command uses an additional session of each worker.

        Args:
            context: The context of the job.
            mesh: The name of a mesh. Defaults to all meshes.
            timeout: The timeout in seconds for waiting for hosts. None waits without a limit.

        Raises:
            JobError: The job, the mesh or a host does not exist.
        """

    def hold(
        self, context: str | None, kind: str, name: str, fields: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Open equipment on the hosts of a job, which remains open after the command has exited.

        Equipment that is already open is refreshed.

        Args:
            context: The context of the job.
            kind: The name of the entry point in `mesh_jobs.equipment`.
            name: A name that is unique among the equipment of this kind.
            fields: The keyword arguments of the entry point, as JSON values.

        Returns:
            The status of the equipment.

        Raises:
            JobError: The equipment cannot be opened, or different equipment of that name exists.
        """

    def held(self, context: str | None, kind: str) -> Sequence[Mapping[str, Any]]:
        """Return the status of all open equipment of a kind, each with its `name`.

        Raises:
            JobError: The job does not exist.
        """

    def release(self, context: str | None, kind: str, name: str) -> None:
        """Close open equipment and remove it from the hosts.

        Raises:
            JobError: No equipment has that name.
        """

    def print_json(self, value: Any) -> None:
        """Print a value as one line of JSON."""

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table."""
