"""Requests of an asyncio service wait although it is idle."""

import threading

from bench.agents.broken_program import broken_program
from mesh_core import Actor, concurrent_endpoint, endpoint, this_host


class Service(Actor):
    @concurrent_endpoint
    async def status(self) -> str:
        return "ready"

    @concurrent_endpoint
    async def reload(self) -> None:
        self.read_settings()

    def read_settings(self) -> None:
        threading.Event().wait()

    @endpoint
    async def close(self) -> None:
        """Do nothing."""


with broken_program():
    service = this_host().spawn_procs(name="front").spawn("service", Service)
    service.status.call_one().get()
    service.reload.call_one()
    service.status.call_one()
