"""Replies to requests of other processes that take too long for the thread of the agent."""

from __future__ import annotations

import threading

from mesh_core._configuration.config import effective
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import RAISED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._core import Message
    from mesh_core._runtime.runtime import Runtime

__all__ = ["reply_from_thread"]


def reply_from_thread(
    runtime: Runtime, message: Message, name: str, function: Callable[[], object]
) -> None:
    """Call a function on a new thread, and reply with its result or with its exception.

    Without a reply, the process that sent the request would wait forever.
    """

    def run() -> None:
        try:
            body, buffers = encode_value(function(), effective().segment_threshold_bytes)
        except Exception as error:
            if message.from_port:
                runtime.engine.reply(message, RAISED, encode_exception(error))
            return
        if message.from_port:
            runtime.engine.reply(message, 0, body, buffers)

    threading.Thread(target=run, name=name, daemon=True).start()
