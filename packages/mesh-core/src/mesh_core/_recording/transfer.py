"""Sends the log of a process, or the list of recorded actors, from a host to the program."""

from __future__ import annotations

import json
from pathlib import Path

from mesh_core._recording.actor_recording import BEGIN
from mesh_core._recording.log import folder_of, kept_entries, log_files
from mesh_core._runtime.late_reply import reply_from_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Message
    from mesh_core._runtime.runtime import Runtime

__all__ = ["send_recorded_actors", "send_recording"]


def send_recording(runtime: Runtime, message: Message, slot: int, incarnation: int) -> None:
    """Reply with the files of a log, on a separate thread; 0 selects the last incarnation."""

    def read() -> object:
        directory = Path(runtime.identity.directory)
        number = incarnation or _last_incarnation(directory, slot)
        return log_files(folder_of(directory, slot, number))

    reply_from_thread(runtime, message, "mesh-recording", read)


def send_recorded_actors(runtime: Runtime, message: Message) -> None:
    """Reply with the recorded actors of this host, on a separate thread.

    Each is a tuple of its mesh, rank, slot, incarnation, port and the time when it began.
    """

    def find() -> object:
        found = []
        for folder in Path(runtime.identity.directory).glob("record-*-*"):
            _, slot, incarnation = folder.name.rsplit("-", 2)
            for entry in kept_entries(folder):
                if entry.kind == BEGIN:
                    mesh = json.loads(entry.fields)["mesh"]
                    place = (int(slot), int(incarnation), entry.actor, entry.time_ns)
                    found.append((mesh, entry.first, *place))
        return found

    reply_from_thread(runtime, message, "mesh-recording", find)


def _last_incarnation(directory: Path, slot: int) -> int:
    names = [path.name for path in directory.glob(f"record-{slot}-*")]
    return max((int(name.rpartition("-")[2]) for name in names), default=0)
