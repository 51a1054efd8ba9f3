"""Tracking of the allocations of this process with memray, at the request of its host.

Requests arrive through the socket of the process. A request starts a thread that tracks for some
seconds and then writes the result into a file in the folder of the host, where the telemetry
process waits for it. memray aggregates allocations by their stacks while it tracks, so the file
grows with the number of different stacks, and not with the number of allocations.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from mesh_telemetry._heap.options import HeapOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = [
    "HEAP_FOLDER",
    "HEAP_START",
    "HEAP_STOP",
    "INSTALL",
    "TrackedProcess",
    "unfinished",
]

#: The name of the folder, which is a sibling of the folders of processes.
HEAP_FOLDER = "heaps"
#: Requests to a process: start to track, with the name of the file and the options; stop.
HEAP_START, HEAP_STOP = "heap_start", "heap_stop"
#: What to do if memray is missing.
INSTALL = "install it there with pip install 'torchmesh-telemetry[memray]'"
# The time that memray needs to start. Loading it takes 0.1 s.
_START_S = 10.0
_END_S = 2.0


def unfinished(path: Path) -> Path:
    """Return the path under which a file is written until it is complete."""
    return path.with_name(f"part-{path.name}")


class _Tracking:
    """The tracking in progress."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_begun = threading.Event()
        self.is_over = threading.Event()
        self.is_cancelled = False
        self.is_ended = False
        self.problem: str | None = None


class TrackedProcess:
    """Tracks the allocations of this process, at most once at a time.

    Args:
        host_folder: The folder of the host.
    """

    def __init__(self, host_folder: Path) -> None:
        self._folder = host_folder / HEAP_FOLDER
        self._tracking: _Tracking | None = None
        self._thread: threading.Thread | None = None
        # The file of the latest request to stop, which may overtake the request to start.
        self._stopped_name = ""
        self._lock = threading.Lock()

    def start(self, argument: str) -> str | None:
        """Start to track; return the problem if that is not possible.

        Args:
            argument: The name of the file to write, and the options.
        """
        name, _, words = argument.partition(" ")
        if os.path.basename(name) != name:
            return "the request is malformed: use the same version of mesh-telemetry everywhere"
        try:
            options = HeapOptions.parsed(words)
        except ValueError as error:
            return f"the request is malformed ({error}): use the same version of mesh-telemetry"
        with self._lock:
            if self._is_tracking():
                return "another heap snapshot of this process is in progress: try again later"
            if name == self._stopped_name:
                return "the request was cancelled"
            tracking = self._tracking = _Tracking(self._folder / name)
            self._thread = threading.Thread(
                target=_track, args=(tracking, options), name="mesh-telemetry-heap", daemon=True
            )
            self._thread.start()
        if not tracking.is_begun.wait(_START_S):
            self.stop(name)
            return f"memray did not start within {_START_S:g} s: try again later"
        return tracking.problem

    def stop(self, name: str) -> bool:
        """Stop tracking and discard the result; return whether it was in progress."""
        with self._lock:
            self._stopped_name = name
            tracking = self._tracking
            if tracking is None or tracking.path.name != name:
                return False
            tracking.is_cancelled = True
            tracking.is_over.set()
            return True

    def _is_tracking(self) -> bool:
        if self._tracking is None or self._thread is None:
            return False
        return self._thread.is_alive() and not self._tracking.is_ended

    def close(self) -> None:
        """Stop tracking, because the process ends."""
        if self._tracking is not None and self._thread is not None:
            self.stop(self._tracking.path.name)
            self._thread.join(_END_S)


def _track(tracking: _Tracking, options: HeapOptions) -> None:
    path = unfinished(tracking.path)
    try:
        try:
            with _tracker(path, options):
                tracking.is_begun.set()
                tracking.is_over.wait(options.seconds)
        finally:
            # Set before the file appears, because the next request may follow immediately.
            tracking.is_ended = True
        if not tracking.is_cancelled:
            path.rename(tracking.path)
    except ImportError:
        tracking.problem = f"memray is not installed: {INSTALL}"
    except Exception as error:
        tracking.problem = f"memray failed ({type(error).__name__}: {error})"
    finally:
        tracking.is_begun.set()
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _tracker(path: Path, options: HeapOptions) -> Any:
    # An optional dependency, which few programs use.
    import memray  # noqa: PLC0415

    return memray.Tracker(
        destination=memray.FileDestination(path, overwrite=True, compress_on_exit=False),
        native_traces=options.is_native,
        trace_python_allocators=options.has_objects,
        file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS,
    )
