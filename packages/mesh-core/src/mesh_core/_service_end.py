"""The end of a service."""

from __future__ import annotations

from typing import Any

from mesh_core._errors import SupervisionError
from mesh_core._loop import loop_thread
from mesh_core._service_order import refuse_to_block
from mesh_core._thread_future import _TaskFuture

__all__ = ["end_service"]


class _EndFuture(_TaskFuture[None]):
    __slots__ = ()

    def _wait(self, timeout: float | None) -> None:
        refuse_to_block("stop")
        super()._wait(timeout)


def end_service(keeper: Any) -> _EndFuture:
    """Ends the replicas, and then the actor that keeps them."""
    return _EndFuture(loop_thread(), _end(keeper))


async def _end(keeper: Any) -> None:
    try:
        await keeper.close.call_one()
    except SupervisionError:
        # It has ended by itself, or with its owner.
        pass
    await keeper.stop()
