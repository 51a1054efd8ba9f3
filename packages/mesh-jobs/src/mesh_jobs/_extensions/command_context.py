"""The interface that commands of other packages use to access applied jobs and to print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mesh_core import HostMesh

__all__ = ["CommandContext"]


class CommandContext(Protocol):
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
        """Open an extension on the hosts of a job; it remains open after the command has exited.

        An extension that is already open is refreshed.

        Args:
            context: The context of the job.
            kind: The name of the entry point in `mesh_jobs.extensions`.
            name: A name that is unique among the extensions of this kind.
            fields: The keyword arguments of the entry point, as JSON values.

        Returns:
            The status of the extension.

        Raises:
            JobError: The extension cannot be opened, or a different one of that name exists.
        """

    def held(self, context: str | None, kind: str) -> Sequence[Mapping[str, Any]]:
        """Return the status of all open extensions of a kind, each with its `name`.

        Raises:
            JobError: The job does not exist.
        """

    def release(self, context: str | None, kind: str, name: str) -> None:
        """Close an open extension and remove it from the hosts.

        Raises:
            JobError: No extension has that name.
        """

    def print_json(self, value: Any) -> None:
        """Print a value as one line of JSON."""

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table."""
