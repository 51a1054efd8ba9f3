"""A forced stop of an actor replies to every message, wherever the message is at that moment."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mesh_core import Actor, MeshStopped, endpoint, this_host
from mesh_core._runtime.runtime import runtime


class Plain(Actor):
    """Serves messages on a thread."""

    @endpoint
    def work(self) -> None:
        """Never return."""
        while True:
            pass

    @endpoint
    def halt_at_next(self) -> None:
        """Force the actor to stop while it takes the next message from its mailbox."""
        _halt_at_next(self)


class Async(Actor):
    """Serves messages on the event loop."""

    @endpoint
    async def work(self) -> None:
        """Never return."""
        await asyncio.sleep(1000)

    @endpoint
    async def halt_at_next(self) -> None:
        """Force the actor to stop while it takes the next message from its mailbox."""
        _halt_at_next(self)


class _HaltingPlans(dict[bytes, Any]):
    """Stops the actor at the lookup that follows the removal of a message from the mailbox."""

    def __init__(self, cell: Any) -> None:
        super().__init__(cell.plans)
        self._cell = cell

    def get(self, meta: bytes, default: Any = None) -> Any:
        self._cell.plans = dict(self)
        halting = threading.Thread(target=self._cell.halt)
        halting.start()
        halting.join()
        return super().get(meta, default)


def _halt_at_next(actor: Actor) -> None:
    (cell,) = [cell for cell in runtime().actors.values() if cell.instance is actor]
    cell.plans = _HaltingPlans(cell)


@pytest.mark.parametrize("cls", [Plain, Async])
def test_a_message_between_the_mailbox_and_the_endpoint_is_rejected(cls: Any) -> None:
    with this_host().spawn_procs(name="forced") as procs:
        mesh = procs.spawn("worker", cls)
        mesh.halt_at_next.call_one().get()
        calls = [mesh.work.call_one() for _ in range(3)]
        for call in calls:
            with pytest.raises(MeshStopped):
                call.get(timeout=20)
        mesh.stop().get()
