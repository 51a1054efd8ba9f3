"""Messages that the actors of a process are serving, for monitoring."""

from __future__ import annotations

from typing import NamedTuple

from mesh_core._runtime.runtime import is_running, runtime
from mesh_core._serialization.wire import read_call_meta

__all__ = ["ActiveCall", "Activity", "activity"]


class ActiveCall(NamedTuple):
    """A message that an actor is serving."""

    endpoint: str
    rank: int
    """The rank that was called."""
    from_proc: int
    """The process that sent the message, packed: host in the upper 32 bits, slot in the lower."""
    call: int
    """The port on which the reply is expected; 0 if none is expected."""


class Activity(NamedTuple):
    """The current activity of an actor."""

    port: int
    name: str
    """The name of the actor's mesh."""
    class_name: str
    rank: int
    """The rank of the actor in the mesh."""
    last: str
    """The endpoint that the actor started last; `__init__` before the first."""
    served: int
    """The number of messages that the actor has served."""
    queued: int
    """The number of queued messages."""
    running: tuple[ActiveCall, ...]


def activity() -> list[Activity]:
    """Return the activity of each actor of this process that is initialized and has not ended."""
    if not is_running():
        return []
    current = runtime()
    found = []
    for port, cell in current.actors.copy().items():
        if cell.instance is None or cell.is_ended:
            continue
        left = list(cell.left)
        running = [one for one in cell.running_messages() if not any(one is each for each in left)]
        found.append(
            Activity(
                port,
                cell.name,
                cell.class_name,
                cell.rank,
                cell.running_name,
                cell.served_count,
                len(left) + current.engine.mailbox_len(port),
                tuple(
                    ActiveCall(read_call_meta(one.meta)[0], one.rank, one.from_proc, one.from_port)
                    for one in running
                ),
            )
        )
    return found
