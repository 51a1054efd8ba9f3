"""Which runs there are in folders on disk, of which hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mesh_telemetry._events.moving import make_folder, write_whole

__all__ = ["HostNote", "Run", "StoredHost", "hosts_of", "note_host", "noted_host", "runs_in"]

_HOST_NOTE = "host.json"


class HostNote(NamedTuple):
    """What a host has said of itself and of the program when it began to keep its rows."""

    number: int
    name: str
    program: str
    began_us: int
    own_proc: int
    """The process of telemetry there."""
    folder: str
    """Where the rows are that are not on disk."""
    end_us: int | None = None
    """When it was closed; None while it runs, and when it was killed."""


class StoredHost(NamedTuple):
    """A host of a run, and the folder with its rows."""

    folder: Path
    note: HostNote


@dataclass(frozen=True)
class Run:
    """One program with telemetry, as it is on disk.

    Attributes:
        name: Its name, by which it is chosen.
        program: What was run.
        begin_us: When its telemetry was started, in microseconds since the epoch.
        end_us: When it was closed; None when it still runs or was killed.
        hosts: The names of its hosts that are on disk.
    """

    name: str
    program: str
    begin_us: int
    end_us: int | None
    hosts: tuple[str, ...]


def note_host(folder: Path, note: HostNote) -> None:
    """Notes which host a folder is of, after which its rows can be found.

    Raises:
        OSError: It cannot be written.
    """
    make_folder(folder)
    write_whole(folder / _HOST_NOTE, json.dumps(note._asdict()))


def noted_host(folder: Path) -> HostNote | None:
    """Gives what a host has noted in its folder; None when that is none."""
    with suppress(OSError, ValueError, TypeError):
        return HostNote(**json.loads((folder / _HOST_NOTE).read_text()))
    return None


def hosts_of(folders: Iterable[Path]) -> dict[str, list[StoredHost]]:
    """Gives the hosts of each run that there are in some folders; each host once.

    Raises:
        OSError: A folder cannot be read.
    """
    found: dict[str, dict[Path, StoredHost]] = {}
    for folder in folders:
        for run in sorted(folder.iterdir()):
            with suppress(NotADirectoryError, FileNotFoundError):
                for host in sorted(run.iterdir()):
                    note = noted_host(host)
                    if note is not None:
                        hosts = found.setdefault(run.name, {})
                        hosts[host.resolve()] = StoredHost(host, note)
    return {run: list(hosts.values()) for run, hosts in found.items()}


def runs_in(folders: Iterable[Path]) -> list[Run]:
    """Gives the runs that there are in some folders, oldest first.

    Raises:
        OSError: A folder cannot be read.
    """
    runs = []
    for name, hosts in hosts_of(folders).items():
        notes = [host.note for host in hosts]
        ends = [note.end_us for note in notes]
        runs.append(
            Run(
                name,
                notes[0].program,
                min(note.began_us for note in notes),
                None if None in ends else max(end for end in ends if end is not None),
                tuple(sorted({note.name for note in notes})),
            )
        )
    return sorted(runs, key=lambda run: (run.begin_us, run.name))
