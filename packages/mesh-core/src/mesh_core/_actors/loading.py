"""An actor that is being loaded beside the agent, which goes on to answer.

To know what it is to be imports its module, which may take long: a framework from a cold disk takes
half a minute. A process that did so in the thread of its agent would seem dead meanwhile.
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._actors.cell import SpawnOrder
    from mesh_core._core import Message

__all__ = ["Loading"]


class Loading:
    """One actor that is coming.

    Attributes:
        message: What has spawned it.
        order: What it is to be, once that is known.
        error: Why that cannot be known.
        is_overdue: Whether it was told to stop, and the time to serve what is queued is over.
        is_given_up: Whether it is not to be started any more.
    """

    def __init__(self, message: Message) -> None:
        self.message = message
        self.order: SpawnOrder | None = None
        self.error: BaseException | None = None
        self.is_overdue = False
        self.is_given_up = False

    def start(self, on_end: Callable[[], object]) -> None:
        """Begins; calls back from a thread when it knows."""
        thread = threading.Thread(target=self._run, args=(on_end,), name="mesh-load", daemon=True)
        thread.start()

    def _run(self, on_end: Callable[[], object]) -> None:
        from mesh_core._program.runtime import value_of

        try:
            self.order = value_of(self.message)
        except BaseException as error:
            # Its module is not there, or does not import here.
            self.error = error
        on_end()
