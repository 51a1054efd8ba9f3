"""The complete segments of one family of a process, limited by size and age."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from mesh_telemetry._events.segment_export import move_segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SealedSegments"]


class _SealedSegment(NamedTuple):
    path: Path
    length: int
    event_count: int
    last_s: float


class SealedSegments:
    """Complete segments, which are evicted oldest first.

    Args:
        retention_s: Age in seconds at which a segment is removed.
        spill: The folder to which evicted segments are moved; they are deleted if omitted.

    Attributes:
        byte_count: Total size of the segments.
        evicted_count: The number of events that were deleted for lack of space since the owner last
            reset this to 0.
        evicted_bytes: The same in bytes.
    """

    def __init__(self, retention_s: float, spill: Path | None) -> None:
        self._retention_s = retention_s
        self._spill = spill
        self._segments: deque[_SealedSegment] = deque()
        self.byte_count = 0
        self.evicted_count = 0
        self.evicted_bytes = 0

    def add(self, path: Path, length: int, event_count: int) -> None:
        """Add the newest segment."""
        self._segments.append(_SealedSegment(path, length, event_count, time.time()))
        self.byte_count += length

    def evict(self) -> bool:
        """Move or delete the oldest segment; return whether there was one."""
        if not self._segments:
            return False
        oldest, is_moved = self._drop_oldest()
        if not is_moved:
            self.evicted_count += oldest.event_count
            self.evicted_bytes += oldest.length
        return True

    def shrink(self, bytes_max: int) -> None:
        """Evict segments until the rest takes at most `bytes_max`."""
        while self.byte_count > bytes_max and self.evict():
            pass

    def expire(self) -> None:
        """Remove segments that are older than the retention time."""
        now = time.time()
        while self._segments and now - self._segments[0].last_s > self._retention_s:
            self._drop_oldest()

    def _drop_oldest(self) -> tuple[_SealedSegment, bool]:
        oldest = self._segments.popleft()
        self.byte_count -= oldest.length
        if self._spill is not None:
            with suppress(OSError):
                move_segment(oldest.path, self._spill)
                return oldest, True
        with suppress(OSError):
            os.unlink(oldest.path)
        return oldest, False
