"""Sends the log of a process from its host to the program."""

from __future__ import annotations

import threading
from pathlib import Path

from mesh_core._configuration.config import effective
from mesh_core._recording.log import folder_of, log_files
from mesh_core._serialization.pickler import encode_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Message
    from mesh_core._runtime.runtime import Runtime

__all__ = ["send_recording"]


def send_recording(runtime: Runtime, message: Message, slot: int, incarnation: int) -> None:
    """Reply with the files of a log, on a thread of its own; 0 selects the last incarnation."""

    def send() -> None:
        directory = Path(runtime.identity.directory)
        number = incarnation or _last_incarnation(directory, slot)
        files = log_files(folder_of(directory, slot, number))
        body, buffers = encode_value(files, effective().segment_threshold_bytes)
        runtime.engine.reply(message, 0, body, buffers)

    threading.Thread(target=send, name="mesh-recording", daemon=True).start()


def _last_incarnation(directory: Path, slot: int) -> int:
    names = [path.name for path in directory.glob(f"record-{slot}-*")]
    return max((int(name.rpartition("-")[2]) for name in names), default=0)
