"""A consumer takes items from a channel; it has taken all but one."""

import asyncio

from bench.agents.broken_program import broken_program
from mesh_core import Actor, Channel, PortReceiver, endpoint, this_host


class Consumer(Actor):
    @endpoint
    async def consume(self, expected: int) -> int:
        port, items = Channel[int].open()
        for item in range(expected - 1):
            port.send(item)
        total = 0
        for _ in range(expected):
            total += await self.next_item(items)
        return total

    async def next_item(self, items: PortReceiver[int]) -> int:
        return await asyncio.shield(items.recv())


with broken_program():
    consumer = this_host().spawn_procs(name="shop").spawn("consumer", Consumer)
    consumer.consume.call_one(5)
