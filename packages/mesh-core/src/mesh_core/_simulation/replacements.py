"""Functions of `mesh_core` that a simulation replaces, because they access the machine."""

from __future__ import annotations

from contextlib import contextmanager

from mesh_core._calls import event_loop
from mesh_core._hosts import joining, standby
from mesh_core._simulation.remote_host import request_attach
from mesh_core._simulation.replaced import replaced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["simulated_functions"]


@contextmanager
def simulated_functions() -> Iterator[None]:
    """Replace functions while the block runs."""
    replacements: list[tuple[Any, str, Any]] = [
        (joining, "request_attach", request_attach),
        (standby, "request_attach", request_attach),
        # In virtual time, no code blocks an event loop.
        (event_loop, "watch_loop", lambda _loop: None),
    ]
    with replaced(replacements):
        yield
