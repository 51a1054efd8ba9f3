"""What is put around the endpoints of a process while somebody wants to see how they fail."""

from __future__ import annotations

from typing import Any, Protocol

from mesh_core._actors.context import serving
from mesh_core._program.runtime import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._actors.cell import ActorCell

__all__ = ["Guard", "guard_endpoints", "is_actor_ending"]


class Guard(Protocol):
    """Makes of an endpoint what is called in its place."""

    def __call__(self, function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        """Gives what is called.

        Args:
            function: The method; its first argument is the actor.
            is_async: Whether calling it gives a coroutine, as calling the result must then.
        """


def guard_endpoints(guard: Guard) -> Callable[[], None]:
    """Puts something around every endpoint of the actors of this process, from its next call on.

    Returns:
        What takes it away again.

    Raises:
        RuntimeError: Somebody else has done so, and has not taken it away.
    """
    guards = runtime().guards
    if guards:
        raise RuntimeError("endpoints are guarded already: take that guard away first")
    guards.append(guard)
    _plan_again()

    def remove() -> None:
        if guard in guards:
            guards.remove(guard)
            _plan_again()

    return remove


def is_actor_ending() -> bool:
    """Says whether the actor that runs is to end now, so that nothing of it should wait on."""
    current = serving()
    return current is not None and current.cell.ending.is_begun.is_set()


def _plan_again() -> None:
    cells: list[ActorCell] = list(runtime().actors.values())
    for cell in cells:
        cell.plans.clear()
