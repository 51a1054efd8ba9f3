"""The current activity of actors as tables."""

from __future__ import annotations

import threading

from mesh_core import Actor, concurrent_endpoint, endpoint, this_host
from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry


class Stuck(Actor):
    def __init__(self) -> None:
        self.is_open = threading.Event()

    @endpoint
    def hang(self) -> None:
        self.is_open.wait()

    @endpoint
    def ready(self) -> int:
        return 1


class Async(Actor):
    @concurrent_endpoint
    async def ready(self) -> int:
        return 1


BUSY = """
    select h.actor, h.name, e.status, e.timestamp_us <= h.timestamp_us as began_before,
        n.queue_depth
    from active_handlers h
    join message_status_events e on e.message_id = h.message_id and e.status = 'active'
    join actor_nodes n on n.id = h.actor_id
"""


def test_a_hanging_handler_is_found_with_its_queue_depth() -> None:
    with Telemetry() as telemetry:
        procs = this_host().spawn_procs(name="team")
        stuck, free = procs.spawn("stuck", Stuck), procs.spawn("free", Async)
        free.ready.call_one().get()
        calls = [stuck.hang.call_one(), stuck.ready.call_one(), stuck.ready.call_one()]

        def found() -> list[dict[str, object]]:
            return telemetry.query(BUSY).table.to_pylist()

        wait_until(lambda: [row["queue_depth"] for row in found()] == [2])
        assert found() == [
            {
                "actor": "stuck",
                "name": "hang",
                "status": "active",
                "began_before": True,
                "queue_depth": 2,
            }
        ]
        nodes = telemetry.query(
            """
            select actor, actor_status, last_message_handler, messages_processed
            from actor_nodes order by actor
            """
        ).table.to_pylist()
        assert nodes == [
            {
                "actor": "free",
                "actor_status": "idle",
                "last_message_handler": "ready",
                "messages_processed": 1,
            },
            {
                "actor": "stuck",
                "actor_status": "processing",
                "last_message_handler": "hang",
                "messages_processed": 0,
            },
        ]
        procs.stop().get()
        assert all(call.exception() is not None for call in calls)
