"""Loading of an actor on a separate thread, while the agent continues to reply.

Unpickling a spawn request imports the module of the actor class, which may take long: a framework
on a cold disk takes half a minute. If the thread of the agent did this, the process would appear to
be dead.
"""

from __future__ import annotations

import threading

from mesh_core._runtime.runtime import value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._core import Message
    from mesh_core._meshes.spawn_request import SpawnRequest

__all__ = ["Loading"]


class Loading:
    """One actor that is being loaded.

    Attributes:
        message: The spawn request.
        request: The unpickled request; None until it is loaded.
        error: The exception that loading raised, if any.
        is_overdue: Whether the actor was stopped and its time to serve queued messages has expired.
        is_given_up: Whether the actor must not be started any more.
    """

    def __init__(self, message: Message) -> None:
        self.message = message
        self.request: SpawnRequest | None = None
        self.error: BaseException | None = None
        self.is_overdue = False
        self.is_given_up = False

    def start(self, on_end: Callable[[], object]) -> None:
        """Start to load the actor; call `on_end` on another thread when it has ended."""
        thread = threading.Thread(target=self._run, args=(on_end,), name="mesh-load", daemon=True)
        thread.start()

    def _run(self, on_end: Callable[[], object]) -> None:
        try:
            self.request = value_of(self.message)
        except BaseException as error:
            # The module does not exist on this host, or its import failed.
            self.error = error
        on_end()
