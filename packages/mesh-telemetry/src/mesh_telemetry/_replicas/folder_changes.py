"""The changes in the folders of the processes of a host since they were last copied."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from mesh_core.spi import MessageLog
from mesh_telemetry._events.proc_folder import recorded_names
from mesh_telemetry._events.segments import (
    MESSAGES,
    SEGMENT_SUFFIX,
    Segment,
    message_header,
    message_length,
    read_messages,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["WINDOW_S", "Change", "FolderChanges"]

#: Older events are not copied, in seconds; the state of actors and meshes has no such limit.
WINDOW_S = 60.0
_STATE = "lifecycle"
# Small files whose content changes in place or grows; rings of records begin with a counter.
_FILES = frozenset({"identity.json", "own", "endpoints", "process_groups", "collectives", "steps"})
_COUNTER_LEN = 64


class Change(NamedTuple):
    """Bytes that belong into a file of a process."""

    proc: str
    """The name of the folder of the process."""
    file: str
    offset: int
    content: bytes


class FolderChanges:
    """Finds the changes since the last call.

    Args:
        folder: The folder of the host.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        # The copied state of each path: the length of a segment, or the beginning and size of a
        # file.
        self._copied: dict[str, object] = {}

    def take(self, bytes_max: int) -> list[Change]:
        """Return the changes, the latest segments first.

        Args:
            bytes_max: Segments in excess of this size are left to the next call.
        """
        found: list[Change] = []
        seen: set[str] = set()
        segments: list[tuple[str, Segment]] = []
        for proc in recorded_names(self._folder):
            for name in _names(f"{self._folder}/{proc}"):
                path = f"{self._folder}/{proc}/{name}"
                if name in _FILES:
                    seen.add(path)
                    found += self._file_changes(proc, name, path)
                elif name.endswith(SEGMENT_SUFFIX):
                    seen.add(path)
                    family, number, first_us, _ = name.split(".")
                    segments.append((proc, Segment(path, family, int(number), int(first_us))))
        # The state of actors comes first, because other rows refer to it.
        segments.sort(key=lambda each: (each[1].family != _STATE, -each[1].first_us))
        left = bytes_max
        for proc, segment in segments:
            if left <= 0:
                break
            changes = list(self._segment_changes(proc, segment, left))
            left -= sum(len(one.content) for one in changes)
            found += changes
        for path in self._copied.keys() - seen:
            del self._copied[path]
        return found

    def _file_changes(self, proc: str, name: str, path: str) -> Iterator[Change]:
        with suppress(OSError), open(path, "rb") as file:
            known = os.fstat(file.fileno()).st_size, file.read(_COUNTER_LEN)
            if self._copied.get(path) != known:
                file.seek(0)
                content = file.read()
                self._copied[path] = known
                yield Change(proc, name, 0, content)

    def _segment_changes(self, proc: str, segment: Segment, bytes_max: int) -> Iterator[Change]:
        copied = self._copied.get(segment.path, 0)
        assert isinstance(copied, int), "only other files have other values"
        length = segment.length()
        if length is None or length <= copied:
            return
        if not copied and segment.family != _STATE:
            last_us = segment.last_us()
            if last_us is None or last_us < (time.time() - WINDOW_S) * 1e6:
                return
        end = min(length, copied + bytes_max)
        name = os.path.basename(segment.path)
        if segment.family == MESSAGES:
            added = read_messages(segment.path, (copied, end))
            if added is None or not added[1]:
                return
            time_base_ns, records = added
            begin = max(copied, message_length(0))
            self._copied[segment.path] = begin + len(records)
            count = (begin + len(records) - message_length(0)) // MessageLog.RECORD.size
            # The header has the number of records, so it comes after them.
            yield Change(proc, name, begin, records)
            yield Change(proc, name, 0, message_header(time_base_ns, count))
            return
        with suppress(OSError), open(segment.path, "rb") as file:
            file.seek(copied)
            content = file.read(end - copied)
            self._copied[segment.path] = copied + len(content)
            yield Change(proc, name, copied, content)


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []
