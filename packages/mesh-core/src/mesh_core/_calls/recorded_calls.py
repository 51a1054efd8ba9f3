"""Recording of the calls that a recorded actor makes."""

from __future__ import annotations

from mesh_core._runtime.serving import serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from mesh_core._core import Targets
    from mesh_core._recording.recording import ProcessRecording

__all__ = ["record_call"]


def record_call(
    recording: ProcessRecording,
    reply: int,
    mesh_name: str,
    endpoint: str,
    targets: Targets,
    body: bytes,
    buffers: Sequence[Buffer],
    parameters: Sequence[str],
) -> None:
    """Record a call, if the caller is a recorded actor.

    Args:
        recording: The recording of this process.
        reply: The port of the replies; 0 if none are expected.
        mesh_name: The name of the called mesh.
        endpoint: The name of the endpoint.
        targets: The receivers.
        body: The encoded arguments.
        buffers: Their large buffers.
        parameters: The names of the positional parameters of the endpoint.
    """
    current = serving()
    if current is None or current.cell.recording is None:
        return
    names = (mesh_name, endpoint)
    recording.called(
        current.cell.recording, current.number, reply, names, targets, body, buffers, parameters
    )
