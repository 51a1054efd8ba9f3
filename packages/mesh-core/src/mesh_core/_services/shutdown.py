"""The end of a service."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mesh_core._calls.coroutine_future import _TaskFuture
from mesh_core._calls.event_loop import loop_thread
from mesh_core._errors import DeadlineExceeded, SupervisionError
from mesh_core._services.call import refuse_to_block

__all__ = ["end_service"]


class _EndFuture(_TaskFuture[None]):
    __slots__ = ()

    def _wait(self, timeout: float | None) -> None:
        refuse_to_block("stop")
        super()._wait(timeout)


def end_service(controller: Any, *, is_drained: bool) -> _EndFuture:
    """Stop the replicas, and then the actor that manages them.

    Args:
        controller: That actor.
        is_drained: Whether outstanding calls may end first.
    """
    return _EndFuture(loop_thread(), _end(controller, is_drained))


async def _end(controller: Any, is_drained: bool) -> None:
    with suppress(SupervisionError, DeadlineExceeded):
        # The actor may have ended already, alone or with its owner, or the program's own limit for
        # calls has passed. Everything then stops without draining.
        await controller.close.call_one(is_drained)
    await controller.stop()
