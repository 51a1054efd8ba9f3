"""What has a process recorded from the moment at which it arrives there."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import NamedTuple

from mesh_core.spi import station
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._events.folders import open_host_folder
from mesh_telemetry._events.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_telemetry._options import TelemetryConfig

__all__ = ["Recording"]


class _Joined(NamedTuple):
    recorder: Recorder
    collector_count: int
    """How many collectors want it: one comes again when somebody watches what is watched."""


# By the names of their runs.
_joined: dict[str, _Joined] = {}
_joining = threading.Lock()


class Recording:
    """One run of telemetry, in whichever process it is.

    An argument of the actor that records: a process reads the arguments of one actor before it
    starts the next, so that nothing of what is spawned behind it goes unrecorded.

    Attributes:
        run: Its name.
        config: What is kept.
        own_ports: Actors of telemetry that there were before it.
    """

    def __init__(self, run: str, config: TelemetryConfig, own_ports: tuple[int, ...]) -> None:
        self.run: str = run
        self.config: TelemetryConfig = config
        self.own_ports: tuple[int, ...] = own_ports

    def check(self) -> None:
        """Sees whether this host has a folder for events.

        Raises:
            StorageError: It has not.
        """
        _, lock = open_host_folder(self.config.directory, self.run, station().host)
        lock.close()

    def join(self, on_restarted: Callable[[], object], own_port: int) -> None:
        """Records until as many have left as have joined.

        Args:
            on_restarted: Called when something was started again that this process owns.
            own_port: The actor that joins.

        Raises:
            StorageError: The folder for events cannot be used.
        """
        with _joining:
            recorder, count = self._begun()
            _joined[self.run] = _Joined(recorder, count + 1)
        recorder.exclude(own_port)
        recorder.on_restarted = on_restarted

    def leave(self) -> None:
        """Ends recording, unless somebody else has joined."""
        with _joining:
            joined = _joined.pop(self.run, None)
            if joined is not None and joined.collector_count > 1:
                _joined[self.run] = joined._replace(collector_count=joined.collector_count - 1)
                return
        if joined is not None:
            joined.recorder.close()

    def _begun(self) -> _Joined:
        joined = _joined.get(self.run)
        if joined is None or joined.recorder.is_forsaken:
            joined = _Joined(Recorder(self.run, self.config, self.own_ports), 0)
            _joined[self.run] = joined
        return joined

    def __reduce__(self) -> Any:
        return _arrived, (self.run, self.config, self.own_ports)


def _arrived(run: str, config: TelemetryConfig, own_ports: tuple[int, ...]) -> Recording:
    recording = Recording(run, config, own_ports)
    # Whoever joins is told what is wrong.
    with suppress(TelemetryError, OSError), _joining:
        recording._begun()
    return recording
