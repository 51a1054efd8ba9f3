"""What the actors of a process wait for, for those who look on."""

from __future__ import annotations

import time
from typing import NamedTuple

from mesh_core._calls.deadlock import waits
from mesh_core._program.runtime import is_running, runtime

__all__ = ["Waiting", "waiting"]


class Waiting(NamedTuple):
    """An answer that somebody in this process waits for."""

    call: int
    """The port of the answers."""
    proc: int
    """The process that has not answered, packed: host in the upper 32 bits, slot in the lower."""
    port: int
    """The port of the actor that has not answered."""
    actor: int
    """The port of the actor that waits; 0 when that is not known, as for the program itself."""
    actor_name: str
    """The name of its mesh; empty when that is not known."""
    running: str
    """The endpoint that waits; empty when that is not known."""
    endpoint: str
    """The endpoint that was called; empty when that is not known."""
    waited_s: float | None
    """For how long; None when that is not known."""


def waiting() -> list[Waiting]:
    """Gives the answers that are missing in this process.

    Who waits and since when is known of actors that wait without a limit of time.
    """
    if not is_running():
        return []
    current, now = runtime(), time.monotonic()
    known = {wait.reply: wait for wait in waits()}
    found = []
    for call, proc, port in current.engine.waits():
        wait = known.get(call)
        if wait is None:
            found.append(Waiting(call, proc, port, 0, "", "", "", None))
            continue
        cell = wait.cell
        names = (cell.name, wait.running_name, wait.name)
        found.append(Waiting(call, proc, port, cell.port, *names, now - wait.began))
    return found
