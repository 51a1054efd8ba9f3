"""Replies that the actors of a process wait for, for monitoring."""

from __future__ import annotations

import time
from typing import NamedTuple

from mesh_core._calls.deadlock import waits
from mesh_core._runtime.runtime import is_running, runtime

__all__ = ["PendingCall", "pending_calls"]


class PendingCall(NamedTuple):
    """A reply that this process waits for."""

    call: int
    """The port on which the replies arrive."""
    proc: int
    """The process that has not replied, packed: host in the upper 32 bits, slot in the lower."""
    port: int
    """The port of the actor that has not replied."""
    actor: int
    """The port of the waiting actor; 0 if it is not known or is the program itself."""
    actor_name: str
    """The name of the waiting actor's mesh; empty if it is not known."""
    running: str
    """The endpoint that waits; empty if it is not known."""
    endpoint: str
    """The endpoint that was called; empty if it is not known."""
    waited_s: float | None
    """How long the actor has waited, in seconds; None if it is not known."""


def pending_calls() -> list[PendingCall]:
    """Return the outstanding replies of this process.

    The waiting actor and the duration are known only for actors that wait without a timeout.
    """
    if not is_running():
        return []
    current, now = runtime(), time.monotonic()
    known = {wait.reply: wait for wait in waits()}
    found = []
    for call, proc, port in current.engine.waits():
        wait = known.get(call)
        if wait is None:
            found.append(PendingCall(call, proc, port, 0, "", "", "", None))
            continue
        cell = wait.cell
        names = (cell.name, wait.running_name, wait.name)
        found.append(PendingCall(call, proc, port, cell.port, *names, now - wait.began))
    return found
