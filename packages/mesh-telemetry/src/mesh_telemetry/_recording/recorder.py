"""Writes the events of this process to its folder until it is closed."""

from __future__ import annotations

import math
import os
import select
import shutil
import socket
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from mesh_core.spi import Event, EventStream, MessageLog, current_process
from mesh_telemetry._collectives.process_groups import ProcessGroups
from mesh_telemetry._debug.breakpoints import Breakpoints
from mesh_telemetry._events.endpoint_names import write_endpoints
from mesh_telemetry._events.event_lines import encode_line, line_of
from mesh_telemetry._events.folders import (
    Lock,
    bytes_below,
    is_locked,
    open_host_folder,
    remove_if_free,
    spill_folder,
    sweep,
)
from mesh_telemetry._events.measurements import Measurements
from mesh_telemetry._events.message_segments import MessageSegments
from mesh_telemetry._events.own_meshes import OWN_NAMES
from mesh_telemetry._events.proc_folder import recorded_names, write_identity
from mesh_telemetry._events.process_socket import (
    ACTIVITY,
    FLUSH,
    ROWS,
    RULES,
    SESSIONS,
    STACKS,
    STATE,
    STOP,
    WAITS,
    ProcessSocket,
    activities,
    stacks,
    state,
    waits,
)
from mesh_telemetry._events.segment_export import make_folder, move_proc
from mesh_telemetry._events.segments import FAMILIES, MESSAGES, SegmentWriter
from mesh_telemetry._events.stops import stop_mesh
from mesh_telemetry._events.write_progress import WriteProgressFile
from mesh_telemetry._heap.tracked_process import HEAP_START, HEAP_STOP, TrackedProcess
from mesh_telemetry._sources import live_rows
from mesh_telemetry._steps.step_recorder import StepRecorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core.spi import Event
    from mesh_telemetry._options import TelemetryConfig

__all__ = ["Recorder", "active_recorder"]

_PERIOD_S = 0.1
_BUSY_PERIOD_S = 0.01
_MESSAGES_MAX = 1 << 17
_EVENTS_MAX = 1 << 16
_EVENTS_AT_ONCE = 4096
_EXPIRE_S = 1.0
_STATE_S = 10.0
_STATE_EVENT_BYTES = 256
_CLOSE_S = 10.0
# Kinds of events with the name of a mesh, which identifies the meshes of telemetry itself.
_NAMED_KINDS = frozenset({"spawned", "started", "proc_started", "proc_died"})
# Limit for all exited processes of a host, as a multiple of the limit for one process.
_EXITED_SHARES = 4

_recorders: WeakSet[Recorder] = WeakSet()


class Recorder:
    """Records this process in a dedicated thread.

    Args:
        run: The run of telemetry, which names its folder.
        config: The options.
        own_ports: Actors of telemetry that existed before the recorder.

    Attributes:
        on_restarted: Called when a mesh that this process owns has been restarted.
        folder: The folder that it writes to.
    """

    def __init__(self, run: str, config: TelemetryConfig, own_ports: tuple[int, ...]) -> None:
        self._config = config
        self.on_restarted: Callable[[], object] = _do_nothing
        self._own_ports: set[int] = set()
        self._own_procs: set[int] = set()
        self._measurements = Measurements()
        self._lost: dict[tuple[str, str], list[int]] = {}
        self._stream_dropped = 0
        self._endpoint_count = 0
        self._lost_at = self._expired_at = -math.inf
        self._pid = os.getpid()
        self._is_over = self._is_restarted = self._has_written = self._has_evicted_state = False
        self._state_written_at = -math.inf
        self._lock = threading.Lock()
        sweep(config.directory)
        location = current_process.location()
        spill = spill_folder(config.spill, run, location.host)
        self._host_folder, self._host_lock = open_host_folder(
            config.directory, run, location.host, spill
        )
        _remove_exited(self._host_folder, config, spill)
        # The subscription precedes the folder, so every event after the creation of the folder is
        # recorded. The log comes first, because it contains the messages from before any
        # subscription.
        self._log = MessageLog(_MESSAGES_MAX, since_start=True)
        self._events = EventStream.subscribe(
            Event.KINDS - set(MessageLog.KINDS), len_max=_EVENTS_MAX
        )
        name = f"{location.slot}.{os.getpid()}.{os.urandom(4).hex()}"
        self.folder: Path = self._host_folder / name
        self._spill = None if spill is None else spill / name
        try:
            self._open_files()
        except BaseException:
            self._events.close()
            self._log.close()
            raise
        self._prepared_at = time.monotonic()
        for port in own_ports:
            self._exclude(port, is_proc=False)
        self._state_events = current_process.snapshot()
        self._thread = threading.Thread(target=self._run, name="mesh-telemetry", daemon=True)
        _recorders.add(self)
        self._thread.start()

    def _open_files(self) -> None:
        """Create the folder and everything in it.

        Raises:
            OSError: The disk is full, or no descriptor is left.
        """
        self.folder.mkdir(mode=0o700)
        self._folder_lock = Lock.of_new(self.folder)
        write_identity(self.folder, current_process.location()._asdict())
        self._process_groups = ProcessGroups(self.folder)
        self._steps = StepRecorder(self.folder, self._process_groups.busy_ns)
        self._breakpoints = Breakpoints(self.folder, self._host_folder)
        self._heap = TrackedProcess(self._host_folder)
        slow_handlers = {HEAP_START: self._heap.start, ROWS: live_rows}
        self._socket = ProcessSocket(self.folder, self._handlers(), slow_handlers)
        self._waker, self._wake_socket = socket.socketpair()
        self._progress = WriteProgressFile(self.folder)
        self._events.count_into(self._progress.event_count)
        self._writers = self._make_writers()
        self._messages = MessageSegments(
            self.folder,
            self._log,
            self._bytes_max(MESSAGES),
            self._config.retention_s,
            self._spill,
        )

    @property
    def is_orphaned(self) -> bool:
        """Whether this recorder was inherited through a fork, or has ended."""
        return self._is_over or os.getpid() != self._pid

    def exclude(self, port: int) -> None:
        """Stop recording an actor, because it belongs to telemetry itself."""
        with self._lock:
            self._exclude(port, is_proc=False)

    def close(self) -> None:
        """Write all events up to now, and stop."""
        if self._is_over or os.getpid() != self._pid:
            return
        self._is_over = True
        self._heap.close()
        self._breakpoints.close()
        with suppress(OSError):
            self._waker.send(b"x")
        self._thread.join(_CLOSE_S)

    def detach(self) -> None:
        """Close inherited resources in a forked process; the parent continues to record."""
        self._is_over = True
        self._breakpoints.disable()
        for each in (
            self._folder_lock,
            self._host_lock,
            self._socket,
            self._waker,
            self._wake_socket,
        ):
            each.close()
        for writer in self._writers.values():
            writer.close()

    def _handlers(self) -> dict[str, Callable[..., Any]]:
        return {
            ACTIVITY: activities,
            FLUSH: self._flush,
            HEAP_STOP: self._heap.stop,
            RULES: self._breakpoints.read_rules,
            SESSIONS: self._breakpoints.rows,
            STACKS: stacks,
            STATE: state,
            STOP: self._stop,
            WAITS: waits,
        }

    def _make_writers(self) -> dict[str, SegmentWriter]:
        config = self._config
        if self._spill is not None:
            make_folder(self._spill)
            shutil.copy(self.folder / "identity.json", self._spill)
        writers = {}
        for family in FAMILIES.keys() - {MESSAGES}:
            # The state of actors and meshes does not expire.
            retention_s = math.inf if family == "lifecycle" else config.retention_s
            writers[family] = SegmentWriter(
                self.folder, family, self._bytes_max(family), retention_s, self._spill
            )
        return writers

    def _bytes_max(self, family: str) -> int:
        return self._config.proc_bytes * FAMILIES[family] // sum(FAMILIES.values())

    def _run(self) -> None:
        period_s = _PERIOD_S
        watched = [self._socket.fileno(), self._wake_socket.fileno()]
        try:
            while not self._is_over:
                ready, _, _ = select.select(watched, [], [], period_s)
                if watched[0] in ready:
                    self._has_written = False
                    self._socket.serve()
                with self._lock:
                    if not (watched[0] in ready and self._has_written):
                        period_s = self._write_events()
                    is_restarted, self._is_restarted = self._is_restarted, False
                if is_restarted:
                    self.on_restarted()
        except Exception:
            if self._pid == os.getpid():
                traceback.print_exc()
        finally:
            if self._pid == os.getpid():
                self._finish()

    def _finish(self) -> None:
        with self._lock, suppress(Exception):
            self._write_events()
            self._lost_at = -math.inf
            self._write_lost()
        self._breakpoints.close()
        self._steps.close()
        self._process_groups.close()
        self._events.close()
        self._messages.close()
        self.detach()
        # Removes the folder of the run on this host when no other process uses it.
        remove_if_free(self._host_folder)

    def _flush(self) -> bool:
        with self._lock:
            self._write_events()
            self._has_written = True
        return True

    def _stop(self, request: str) -> dict[str, str]:
        return stop_mesh(request, self._own_ports)

    def _write_events(self) -> float:
        """Write all events since the last call; return the seconds until the next call is due."""
        event_count = self._progress.event_count[0]
        lines: dict[str, list[dict[str, Any]]] = {}
        self._repeat_state()
        known, self._state_events = self._state_events, []
        for event in known:
            self._add_line(event, lines)
        for _ in range(_EVENTS_MAX // _EVENTS_AT_ONCE):
            events = self._events.poll(_EVENTS_AT_ONCE)
            for event in events:
                self._is_restarted |= event.kind == "restarted"
                self._add_line(event, lines)
            if len(events) < _EVENTS_AT_ONCE:
                break
        lines["metrics"] = self._measurements.take()
        for family, some in lines.items():
            self._write_lines(family, some)
        period_s = self._prepare_messages()
        self._count_dropped()
        self._write_lost()
        self._expire()
        self._process_groups.poll()
        self._progress.publish(event_count, self._endpoint_count)
        return period_s

    def _prepare_messages(self) -> float:
        """Provide space for messages; return for how many seconds it is expected to last."""
        now = time.monotonic()
        written_bytes, elapsed_s = self._messages.prepare(), now - self._prepared_at
        self._prepared_at = now
        self._write_endpoints()
        self._count_evicted(MESSAGES)
        if self._messages.dropped:
            reason = "disk" if self._messages.has_no_space else "ring"
            self._count_lost(MESSAGES, reason, self._messages.dropped, 0)
            self._messages.dropped = 0
        if not written_bytes:
            return _PERIOD_S
        lasts_s = self._messages.free_bytes * elapsed_s / written_bytes
        return min(max(lasts_s / 2, _BUSY_PERIOD_S), _PERIOD_S)

    def _repeat_state(self) -> None:
        """Repeat the current state if evicted events may have described part of it."""
        now = time.monotonic()
        if self._has_evicted_state and now - self._state_written_at >= _STATE_S:
            self._has_evicted_state, self._state_written_at = False, now
            there = current_process.snapshot()
            # If the state is too large, repeating it would evict everything else.
            if len(there) * _STATE_EVENT_BYTES < self._config.proc_bytes // 20:
                self._state_events = there

    def _add_line(self, event: Event, lines: dict[str, list[dict[str, Any]]]) -> None:
        """Sort an event into its family, unless it concerns telemetry itself."""
        if event.kind in _NAMED_KINDS and event.text in OWN_NAMES:
            self._exclude(event.actor, is_proc=False)
            if event.kind == "proc_started":
                self._exclude(event.peer, is_proc=True)
        if event.actor in self._own_ports or event.peer in self._own_procs:
            return
        if event.kind == "metric":
            self._measurements.add(event)
            return
        family, line = line_of(event)
        lines.setdefault(family, []).append(line)

    def _exclude(self, number: int, *, is_proc: bool) -> None:
        known = self._own_procs if is_proc else self._own_ports
        if number and number not in known:
            known.add(number)
            for folder in (self.folder, self._spill):
                with suppress(OSError):
                    if folder is not None:
                        with open(folder / "own", "a") as file:
                            file.write(f"{'proc' if is_proc else 'port'} {number}\n")

    def _write_lines(self, family: str, lines: list[dict[str, Any]]) -> None:
        length_max = self._writers[family].block_len_max
        piece, count, first_us = bytearray(), 0, 0
        for line in lines:
            encoded = encode_line(line)
            if len(encoded) > length_max:
                self._count_lost(family, "size", 1, len(encoded))
                continue
            if len(piece) + len(encoded) > length_max:
                self._append(family, bytes(piece), count, first_us)
                piece, count = bytearray(), 0
            if not count:
                first_us = line["t"]
            piece += encoded
            count += 1
        if count:
            self._append(family, bytes(piece), count, first_us)

    def _write_endpoints(self) -> None:
        """Write the names of endpoints, to whose numbers records refer."""
        names = self._log.endpoint_names()
        if len(names) - 1 > self._endpoint_count:
            for folder in (self._spill, self.folder):
                with suppress(OSError):
                    if folder is not None:
                        write_endpoints(folder, names)
                        self._endpoint_count = len(names) - 1

    def _append(self, family: str, piece: bytes, count: int, first_us: int) -> None:
        """Append a block of lines; if the disk is full, evict older segments to free space."""
        writer = self._writers[family]
        while True:
            try:
                writer.append(piece, count, first_us)
                break
            except OSError:
                if not self.folder.is_dir() or not writer.evict():
                    self._count_lost(family, "disk", count, len(piece))
                    break
        self._count_evicted(family)

    def _count_evicted(self, family: str) -> None:
        """Count the events that were evicted for lack of space."""
        sealed = (self._messages if family == MESSAGES else self._writers[family]).sealed
        if sealed.evicted_count:
            self._has_evicted_state |= family == "lifecycle"
            self._count_lost(family, "space", sealed.evicted_count, sealed.evicted_bytes)
            sealed.evicted_count = sealed.evicted_bytes = 0

    def _count_dropped(self) -> None:
        new = self._events.dropped - self._stream_dropped
        if new:
            self._stream_dropped += new
            self._count_lost("lifecycle", "ring", new, 0)

    def _count_lost(self, family: str, reason: str, count: int, length: int) -> None:
        lost = self._lost.setdefault((family, reason), [0, 0])
        lost[0] += count
        lost[1] += length

    def _write_lost(self) -> None:
        """Write the counts of lost events, at most once a second."""
        now = time.monotonic()
        if not self._lost or now - self._lost_at < _EXPIRE_S:
            return
        self._lost_at = now
        lost, self._lost = self._lost, {}
        time_us = time.time_ns() // 1000
        lines = [
            {"t": time_us, "k": "dropped", "of": family, "reason": reason, "n": n, "bytes": length}
            for (family, reason), (n, length) in lost.items()
        ]
        self._write_lines("lifecycle", lines)

    def _expire(self) -> None:
        now = time.monotonic()
        if now - self._expired_at >= _EXPIRE_S:
            self._expired_at = now
            self._messages.expire()
            for writer in self._writers.values():
                writer.expire()


def _remove_exited(host_folder: Path, config: TelemetryConfig, spill: Path | None) -> None:
    """Remove folders of exited processes that are too old or exceed the limit for all of them.

    With a spill folder, their segments are moved there instead.
    """
    bytes_left = config.proc_bytes * _EXITED_SHARES
    dead = []
    for name in recorded_names(str(host_folder)):
        folder = host_folder / name
        with suppress(OSError):
            if not is_locked(folder):
                with os.scandir(folder) as entries:
                    last_s = max((entry.stat().st_mtime for entry in entries), default=0.0)
                dead.append((last_s, folder))
    for last_s, folder in sorted(dead, reverse=True):
        bytes_left -= bytes_below(folder)
        if bytes_left < 0 or time.time() - last_s > config.retention_s:
            with suppress(OSError):
                if spill is not None:
                    move_proc(folder, spill / folder.name)
                shutil.rmtree(folder, ignore_errors=True)


def active_recorder() -> Recorder | None:
    """Return a recorder of this process; None if it is not recorded."""
    return next((one for one in list(_recorders) if not one.is_orphaned), None)


def _do_nothing() -> None:
    """Do nothing; the default callback."""


def _detach_in_fork() -> None:
    for recorder in list(_recorders):
        recorder.detach()
    _recorders.clear()


os.register_at_fork(after_in_child=_detach_in_fork)
