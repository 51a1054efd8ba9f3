"""What commands of other packages are given: the jobs that are applied, and ways to print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mesh_core import HostMesh

__all__ = ["CommandDoor"]


class CommandDoor(Protocol):
    """The object of the `typer.Context` that a command takes.

    A context is the name of a job, `default` where it is None.
    """

    def attached(
        self, context: str | None, mesh: str | None, timeout: float | None
    ) -> AbstractContextManager[Mapping[str, HostMesh]]:
        """Attaches to the hosts of a job, beside the program that uses them.

        Args:
            context: The job.
            mesh: Which of its meshes; all when left out.
            timeout: For how many seconds to wait for hosts; for ever when left out.

        Raises:
            JobError: There is no such job, mesh, or host.
        """

    def hold(
        self, context: str | None, kind: str, name: str, fields: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Gives equipment to the hosts of a job, which they keep when the command has ended.

        What they have already is refreshed.

        Args:
            context: The job.
            kind: The name of the entry point in `mesh_jobs.equipment`.
            name: What tells it from others of its kind.
            fields: What the entry point is called with, in values that JSON has.

        Returns:
            Its status.

        Raises:
            JobError: It cannot be had, or there is another of that name.
        """

    def held(self, context: str | None, kind: str) -> Sequence[Mapping[str, Any]]:
        """Gives the status of all equipment of a kind that is held, each with its `name`.

        Raises:
            JobError: There is no such job.
        """

    def release(self, context: str | None, kind: str, name: str) -> None:
        """Takes equipment that is held from the hosts.

        Raises:
            JobError: There is none of that name.
        """

    def print_json(self, value: Any) -> None:
        """Prints a value as one line of JSON."""

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Prints a table."""
