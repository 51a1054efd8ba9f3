"""Switches the recording of actors on, in a process of a mesh."""

from __future__ import annotations

import logging

from mesh_core._configuration.config import effective

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._runtime.runtime import Runtime

__all__ = ["record"]

_ROOT = 0


def record(runtime: Runtime) -> None:
    """Record what the actors of this process receive, if the configuration says so.

    A process whose log cannot be created runs without a recording, and prints the reason.
    """
    config = effective()
    if config.record is None:
        return
    # Most programs record nothing.
    from mesh_core._recording.log import folder_of  # noqa: PLC0415
    from mesh_core._recording.recording import ProcessRecording  # noqa: PLC0415

    identity = runtime.identity

    def on_failure(port: int, number: int, description: str) -> None:
        runtime.tell_agent(
            _ROOT, "case_wanted", runtime.me, identity.incarnation, port, number, description
        )

    folder = folder_of(identity.directory, identity.slot, identity.incarnation)
    try:
        runtime.recording = ProcessRecording(
            runtime.engine, folder, config.record_bytes_max, config.record, on_failure
        )
    except OSError as error:
        logging.getLogger(__name__).warning("actors are not recorded here: %s", error)
