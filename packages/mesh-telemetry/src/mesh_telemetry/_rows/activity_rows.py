"""Rows of the current activity of actors, from the reports of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mesh_core.spi import ActiveCall, Activity
from mesh_telemetry._rows.columns import mixed, proc_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from mesh_telemetry._events.proc_folder import ProcFolder

__all__ = ["handler_rows", "node_rows"]


def node_rows(reply: Any, folder: ProcFolder, now_us: int) -> list[dict[str, Any]]:
    """Return a row for each actor."""
    identity = folder.identity
    return [
        {
            "id": _number(identity.number, one.port),
            "mesh_id": one.port,
            "rank": one.rank,
            "actor": one.name,
            "actor_type": one.class_name,
            "actor_status": "processing" if one.running else "idle",
            "last_message_handler": one.last,
            "messages_processed": one.served,
            "queue_depth": one.queued,
            "host": identity.host_name,
            "proc": identity.proc,
        }
        for one in _activities(reply, folder)
    ]


def handler_rows(reply: Any, folder: ProcFolder, now_us: int) -> list[dict[str, Any]]:
    """Return a row for each message that is being served."""
    identity = folder.identity
    return [
        {
            "actor_id": _number(identity.number, one.port),
            "mesh_id": one.port,
            "actor": one.name,
            "name": handling.endpoint,
            "rank": handling.rank,
            "from_proc": proc_names(np.array([handling.from_proc], np.uint64))[0].as_py(),
            "call": handling.call or None,
            "message_id": (
                _number(handling.call, identity.number, one.port) if handling.call else None
            ),
            "host": identity.host_name,
            "proc": identity.proc,
        }
        for one in _activities(reply, folder)
        for handling in map(ActiveCall._make, one.running)
    ]


def _activities(reply: Any, folder: ProcFolder) -> Iterator[Activity]:
    for activity in reply:
        one = Activity._make(activity)
        if one.port not in folder.own_ports:
            yield one


def _number(*parts: int) -> int:
    return int(mixed(*map(np.uint64, parts)))
