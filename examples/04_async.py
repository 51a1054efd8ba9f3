"""Await calls in an asyncio program, and run endpoints of one actor concurrently.

A future can be waited for with `.get()` or awaited, and a program may mix both. Endpoints may be
`def` or `async def`. An actor serves one message at a time, except that it serves further messages
while a concurrent endpoint awaits.
"""

import asyncio

from mesh_core import Actor, concurrent_endpoint, endpoint, this_host


class Gate(Actor):
    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.waiting = 0

    @concurrent_endpoint
    async def pass_through(self, who: str) -> str:
        self.waiting += 1
        await self.opened.wait()
        return f"{who} is through"

    @endpoint
    async def open(self) -> int:
        self.opened.set()
        return self.waiting

    @endpoint
    def is_open(self) -> bool:
        return self.opened.is_set()


async def main() -> None:
    async with this_host().spawn_procs() as procs:
        gate = procs.spawn("gate", Gate)
        # These calls are sent immediately, before anything awaits them.
        passing = [gate.pass_through.call_one(who) for who in ("Ada", "Grace", "Barbara")]
        assert not await gate.is_open.call_one()
        print(await gate.open.call_one(), "waited at the gate")
        for line in await asyncio.gather(*passing):
            print(line)
        assert await gate.is_open.call_one()


asyncio.run(main())

# prints:
#   3 waited at the gate
#   Ada is through
#   Grace is through
#   Barbara is through
