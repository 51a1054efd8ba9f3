"""Loading of an actor on a separate thread, while the agent continues to reply.

Unpickling a spawn request imports the module of the actor class, which may take long: a framework
on a cold disk takes half a minute. If the thread of the agent did this, the process would appear to
be dead.
"""

from __future__ import annotations

import threading

from mesh_core._runtime.runtime import value_of
from mesh_core._serialization.pickler import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core._core import Message
    from mesh_core._meshes.spawn_request import SpawnRequest
    from mesh_core._recording.recording import ProcessRecording
    from mesh_core._runtime.open_message import OpenMessage

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

    def __init__(
        self,
        message: Message,
        recording: ProcessRecording | None,
        moved_parts: Sequence[memoryview] | None,
    ) -> None:
        self.message = message
        # The large parts of the request, if the actor has moved here; else they are in the message.
        self._moved_parts = moved_parts
        # The message with open buffers, if actors are recorded.
        self.opened: Message | OpenMessage = message
        self._recording = recording
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
            if self._moved_parts is not None:
                self.request = decode(self.message.body, self._moved_parts)
            else:
                if self._recording is not None:
                    self.opened = self._recording.opened(self.message)
                self.request = value_of(self.opened)
        except BaseException as error:
            # The module does not exist on this host, or its import failed.
            self.error = error
        on_end()
