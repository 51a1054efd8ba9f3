"""An exception in an endpoint, which a coroutine does not catch."""

import asyncio

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


async def main() -> None:
    workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker, 1)
    await workers.add.call("one")


asyncio.run(main())
