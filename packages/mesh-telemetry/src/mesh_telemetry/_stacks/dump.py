"""What is asked of stacks, and what comes back, without the rows."""

from __future__ import annotations

from dataclasses import dataclass

from mesh_telemetry._query.coverage import HostFailure

__all__ = ["DumpOptions", "HostDump", "ProcFailure", "StackDump"]


@dataclass(frozen=True)
class ProcFailure:
    """A process whose stacks were not taken.

    Attributes:
        host: The name of its machine.
        proc: The process, as `0.3`.
        cause: Why, and what to do about it.
    """

    host: str
    proc: str
    cause: str


@dataclass(frozen=True)
class StackDump:
    """What became of a dump; its rows are in the tables `pyspy_dumps` and so on.

    Attributes:
        dump_id: Its name there.
        procs: The processes whose stacks were taken, as `0.3`.
        failed: Those whose were not.
        hosts_failed: Hosts of which nothing is known.
    """

    dump_id: str
    procs: tuple[str, ...]
    failed: tuple[ProcFailure, ...]
    hosts_failed: tuple[HostFailure, ...]

    @property
    def is_full(self) -> bool:
        """Whether the stacks of all processes that were asked for were taken."""
        return not self.failed and not self.hosts_failed


@dataclass(frozen=True)
class DumpOptions:
    """What is wanted of each process.

    Attributes:
        is_native: Also what runs in C and the like.
        has_locals: Local variables.
        has_subprocesses: Also of the processes that it has started.
    """

    is_native: bool
    has_locals: bool
    has_subprocesses: bool

    def words(self) -> list[str]:
        """Writes them for `py-spy dump`."""
        wanted = {
            "--native": self.is_native,
            "--locals": self.has_locals,
            "--subprocesses": self.has_subprocesses,
        }
        return [word for word, is_wanted in wanted.items() if is_wanted]


@dataclass(frozen=True)
class HostDump:
    """What became of a dump on one host."""

    procs: tuple[str, ...]
    failed: tuple[ProcFailure, ...]
