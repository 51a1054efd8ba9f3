"""Lookup of the actor of this process that serves the messages to a port."""

from __future__ import annotations

from mesh_core._runtime.runtime import runtime

__all__ = ["is_actor_spawning", "local_actor"]


def local_actor(port: int) -> object | None:
    """Return an object that represents the live actor at a port of this process, or None.

    After a restart of the actor, the object is a different one.
    """
    cell = runtime().actors.get(port)
    return None if cell is None or cell.is_ended else cell


def is_actor_spawning(port: int) -> bool:
    """Return whether an actor is still to be spawned at a port of this process.

    Messages to that port wait until the actor has started. Spawning takes as long as importing the
    module of its class. The result is False while the actor lives, and once it has ended or could
    not be spawned.
    """
    return runtime().agent.is_spawning(port)
