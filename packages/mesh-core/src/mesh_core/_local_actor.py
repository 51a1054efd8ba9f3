"""Who of this process serves the messages to a port."""

from __future__ import annotations

from mesh_core._runtime import runtime

__all__ = ["local_actor"]


def local_actor(port: int) -> object | None:
    """Gives something that stands for the actor of this process at a port, while it lives.

    It is another one when the actor has been started anew.
    """
    cell = runtime().actors.get(port)
    return None if cell is None or cell.is_ended else cell
