"""Options and results of a dump of stacks, without its rows."""

from __future__ import annotations

from dataclasses import dataclass

from mesh_telemetry._query.coverage import HostFailure

__all__ = ["DumpOptions", "HostDump", "ProcFailure", "StackDump"]


@dataclass(frozen=True)
class ProcFailure:
    """A process whose stacks could not be taken.

    Attributes:
        host: The host name of the machine.
        proc: The process, such as `0.3`.
        cause: The cause, and how to fix it.
    """

    host: str
    proc: str
    cause: str


@dataclass(frozen=True)
class StackDump:
    """The result of a dump; its rows are in the tables `pyspy_dumps` and so on.

    Attributes:
        dump_id: Its id in the tables.
        procs: The processes whose stacks were taken, such as `0.3`.
        failed: The processes whose stacks could not be taken.
        hosts_failed: Hosts that did not reply.
    """

    dump_id: str
    procs: tuple[str, ...]
    failed: tuple[ProcFailure, ...]
    hosts_failed: tuple[HostFailure, ...]

    @property
    def is_full(self) -> bool:
        """Whether the stacks of all requested processes were taken."""
        return not self.failed and not self.hosts_failed


@dataclass(frozen=True)
class DumpOptions:
    """Options of a dump.

    Attributes:
        is_native: Include native frames.
        has_locals: Include local variables.
        has_subprocesses: Include child processes.
    """

    is_native: bool
    has_locals: bool
    has_subprocesses: bool

    def words(self) -> list[str]:
        """Return the arguments for `py-spy dump`."""
        wanted = {
            "--native": self.is_native,
            "--locals": self.has_locals,
            "--subprocesses": self.has_subprocesses,
        }
        return [word for word, is_wanted in wanted.items() if is_wanted]


@dataclass(frozen=True)
class HostDump:
    """The result of a dump on one host."""

    procs: tuple[str, ...]
    failed: tuple[ProcFailure, ...]
