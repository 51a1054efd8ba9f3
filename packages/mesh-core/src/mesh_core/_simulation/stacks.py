"""The positions at which the threads of a simulation wait, for reports."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from mesh_core._simulation.scheduler import SimulatedThread

__all__ = ["waiting_places"]

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PLACES_MAX = 20


def waiting_places(threads: list[SimulatedThread]) -> list[str]:
    """Describe the threads that run code of the user, one line each."""
    frames = sys._current_frames()
    places = []
    for thread in threads:
        frame = _user_frame(frames.get(thread.ident))
        if frame is not None:
            code = frame.f_code
            where = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
            places.append(f"{thread.process}, {thread.name}: {where}")
    if len(places) > _PLACES_MAX:
        places[_PLACES_MAX:] = [f"and {len(places) - _PLACES_MAX} more"]
    return places


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        if not frame.f_code.co_filename.startswith((_LIBRARY, _OURS, "<frozen")):
            return frame
        frame = frame.f_back
    return None
