"""Wrappers around the endpoints of a process, used to observe how endpoints fail."""

from __future__ import annotations

from typing import Any, Protocol

from mesh_core._runtime.runtime import runtime
from mesh_core._runtime.serving import serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._actors.cell import ActorCell

__all__ = ["EndpointInterceptor", "intercept_endpoints", "is_actor_ending"]


class EndpointInterceptor(Protocol):
    """Wrapper factory: returns a callable that replaces an endpoint."""

    def __call__(self, function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        """Return the wrapped endpoint.

        Args:
            function: The method of the actor; its first argument is the actor.
            is_async: Whether calling the method returns a coroutine. If so, calling the wrapper
                must return a coroutine too.
        """


def intercept_endpoints(interceptor: EndpointInterceptor) -> Callable[[], None]:
    """Wrap every endpoint of the actors of this process, starting with the next call.

    Returns:
        A function that removes the wrapper.

    Raises:
        RuntimeError: Another interceptor is already installed.
    """
    interceptors = runtime().interceptors
    if interceptors:
        raise RuntimeError("the endpoints already have an interceptor: remove it first")
    interceptors.append(interceptor)
    _plan_again()

    def remove() -> None:
        if interceptor in interceptors:
            interceptors.remove(interceptor)
            _plan_again()

    return remove


def is_actor_ending() -> bool:
    """Return whether the running actor is terminating, so that it should not wait."""
    current = serving()
    return current is not None and current.cell.ending.is_begun.is_set()


def _plan_again() -> None:
    cells: list[ActorCell] = list(runtime().actors.values())
    for cell in cells:
        cell.plans.clear()
