"""The runs in directories on disk, and their hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mesh_telemetry._events.segment_export import make_folder, write_atomically

__all__ = [
    "HostMetadata",
    "Run",
    "StoredHost",
    "hosts_of",
    "read_host_metadata",
    "runs_in",
    "write_host_metadata",
]

_METADATA_FILE = "host.json"


class HostMetadata(NamedTuple):
    """The description of a host and its program, written when the host began to keep rows."""

    number: int
    name: str
    program: str
    began_us: int
    own_proc: int
    """The telemetry process of the host."""
    folder: str
    """The folder with rows that are not on disk."""
    end_us: int | None = None
    """When telemetry was closed; None while it runs or if it was killed."""


class StoredHost(NamedTuple):
    """A host of a run, and the folder with its rows."""

    folder: Path
    metadata: HostMetadata


@dataclass(frozen=True)
class Run:
    """One program with telemetry, as recorded on disk.

    Attributes:
        name: Its name, which identifies the run.
        program: The command line of the program.
        begin_us: When its telemetry was started, in microseconds since the epoch.
        end_us: When it was closed; None if it still runs or was killed.
        hosts: The names of its hosts with rows on disk.
    """

    name: str
    program: str
    begin_us: int
    end_us: int | None
    hosts: tuple[str, ...]


def write_host_metadata(folder: Path, metadata: HostMetadata) -> None:
    """Write the description of a host to its folder, which makes its rows visible to readers.

    Raises:
        OSError: It cannot be written.
    """
    make_folder(folder)
    write_atomically(folder / _METADATA_FILE, json.dumps(metadata._asdict()))


def read_host_metadata(folder: Path) -> HostMetadata | None:
    """Return the description of a host from its folder; None if there is none."""
    with suppress(OSError, ValueError, TypeError):
        return HostMetadata(**json.loads((folder / _METADATA_FILE).read_text()))
    return None


def hosts_of(folders: Iterable[Path]) -> dict[str, list[StoredHost]]:
    """Return the hosts of each run in some directories, each host once.

    Raises:
        OSError: A directory cannot be read.
    """
    found: dict[str, dict[Path, StoredHost]] = {}
    for folder in folders:
        for run in sorted(folder.iterdir()):
            with suppress(NotADirectoryError, FileNotFoundError):
                for host in sorted(run.iterdir()):
                    metadata = read_host_metadata(host)
                    if metadata is not None:
                        hosts = found.setdefault(run.name, {})
                        hosts[host.resolve()] = StoredHost(host, metadata)
    return {run: list(hosts.values()) for run, hosts in found.items()}


def runs_in(folders: Iterable[Path]) -> list[Run]:
    """Return the runs in some directories, oldest first.

    Raises:
        OSError: A directory cannot be read.
    """
    runs = []
    for name, hosts in hosts_of(folders).items():
        metadata = [host.metadata for host in hosts]
        ends = [metadata.end_us for metadata in metadata]
        runs.append(
            Run(
                name,
                metadata[0].program,
                min(metadata.began_us for metadata in metadata),
                None if None in ends else max(end for end in ends if end is not None),
                tuple(sorted({metadata.name for metadata in metadata})),
            )
        )
    return sorted(runs, key=lambda run: (run.begin_us, run.name))
