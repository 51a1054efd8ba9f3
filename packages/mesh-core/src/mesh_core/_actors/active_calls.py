"""What the actors of a process do now, for those who look on."""

from __future__ import annotations

from typing import NamedTuple

from mesh_core._program.runtime import is_running, runtime
from mesh_core._serialization.wire import read_call_meta

__all__ = ["Activity", "Handling", "activity"]


class Handling(NamedTuple):
    """A message that an actor serves."""

    endpoint: str
    rank: int
    """The rank that was called."""
    from_proc: int
    """Who has sent it, packed: the host in the upper 32 bits, the slot in the lower."""
    call: int
    """The port of the answers; 0 when none is wanted."""


class Activity(NamedTuple):
    """An actor, and what it does."""

    port: int
    name: str
    """The name of its mesh."""
    class_name: str
    rank: int
    """Its rank in the mesh."""
    last: str
    """The endpoint that it has begun last; `__init__` before the first."""
    served: int
    """How many messages it has served."""
    queued: int
    """How many wait for their turn."""
    running: tuple[Handling, ...]


def activity() -> list[Activity]:
    """Gives what each actor of this process does; those that end are left out."""
    if not is_running():
        return []
    current = runtime()
    found = []
    for port, cell in list(current.actors.items()):
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
                    Handling(read_call_meta(one.meta)[0], one.rank, one.from_proc, one.from_port)
                    for one in running
                ),
            )
        )
    return found
