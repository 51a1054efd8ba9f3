"""Starts recording in a process as soon as the description of a run arrives there."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import NamedTuple

from mesh_core.spi import current_process
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._events.folders import open_host_folder
from mesh_telemetry._recording.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_telemetry._options import TelemetryConfig

__all__ = ["Recording"]


class _SharedRecorder(NamedTuple):
    recorder: Recorder
    collector_count: int
    """The number of collectors that use the recorder: watching twice adds another one."""


# By the name of the run.
_recorders: dict[str, _SharedRecorder] = {}
_recorders_lock = threading.Lock()


class Recording:
    """One run of telemetry, in any process.

    An argument of the recording actor. A process decodes the arguments of one actor before it
    starts the next one, so every actor that is spawned after the collector is recorded.

    Attributes:
        run: The name of the run.
        config: The options.
        own_ports: Actors of telemetry that existed before it.
    """

    def __init__(self, run: str, config: TelemetryConfig, own_ports: tuple[int, ...]) -> None:
        self.run: str = run
        self.config: TelemetryConfig = config
        self.own_ports: tuple[int, ...] = own_ports

    def check(self) -> None:
        """Verify that a folder for events can be used on this host.

        Raises:
            StorageError: It cannot be used.
        """
        _, lock = open_host_folder(self.config.directory, self.run, current_process.location().host)
        lock.close()

    def start(self, on_restarted: Callable[[], object], own_port: int) -> None:
        """Record this process until each call of `start` is matched by a call of `stop`.

        Args:
            on_restarted: Called when a mesh that this process owns has been restarted.
            own_port: The actor that joins.

        Raises:
            StorageError: The folder for events cannot be used.
        """
        with _recorders_lock:
            recorder, count = self._recorder()
            _recorders[self.run] = _SharedRecorder(recorder, count + 1)
        recorder.exclude(own_port)
        recorder.on_restarted = on_restarted

    def stop(self) -> None:
        """Stop recording, unless other collectors still use the recorder."""
        with _recorders_lock:
            shared = _recorders.pop(self.run, None)
            if shared is not None and shared.collector_count > 1:
                _recorders[self.run] = shared._replace(collector_count=shared.collector_count - 1)
                return
        if shared is not None:
            shared.recorder.close()

    def _recorder(self) -> _SharedRecorder:
        shared = _recorders.get(self.run)
        if shared is None or shared.recorder.is_orphaned:
            shared = _SharedRecorder(Recorder(self.run, self.config, self.own_ports), 0)
            _recorders[self.run] = shared
        return shared

    def __reduce__(self) -> Any:
        return _unpickle, (self.run, self.config, self.own_ports)


def _unpickle(run: str, config: TelemetryConfig, own_ports: tuple[int, ...]) -> Recording:
    recording = Recording(run, config, own_ports)
    # Errors are raised by `start`.
    with suppress(TelemetryError, OSError), _recorders_lock:
        recording._recorder()
    return recording
