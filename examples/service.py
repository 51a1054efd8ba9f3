"""Serve an actor from several processes, and continue when one of them is killed.

A service maintains its number of replicas. Here each replica slowly adds up prices, and 200 clients
send requests concurrently. After some of the replies a replica is killed. Its pending requests are
retried on other replicas, because `retries` declares `total` safe to repeat, and a new replica
replaces the killed one.
"""

import asyncio
import os
import signal
import time

from mesh_core import Actor, endpoint
from mesh_core.services import Service, ServiceOverloaded


class Till(Actor):
    def __init__(self, prices: dict[str, int]) -> None:
        self.prices = prices

    @endpoint
    def total(self, basket: list[str]) -> int:
        time.sleep(0.01)
        return sum(self.prices[item] for item in basket)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


async def client(tills: Till, number: int) -> int:
    basket = ["bread"] * number + ["milk"]
    while True:
        try:
            return await tills.total.route(basket)
        except ServiceOverloaded:
            # The queue is full: retry later.
            await asyncio.sleep(0.05)


async def main() -> None:
    options = Service.options(
        num_replicas=3, retries={"total": 3}, outstanding_max=4, queue_len_max=40
    )
    async with options.spawn("tills", Till, {"bread": 3, "milk": 1}) as service:
        await service.initialized
        tills = service.handle
        victim = await tills.pid.route()
        clients = [asyncio.create_task(client(tills, number)) for number in range(200)]
        await clients[20]
        os.kill(victim, signal.SIGKILL)
        totals = await asyncio.gather(*clients)
        print("all served:", totals == [3 * number + 1 for number in range(200)])

        await service.settled()
        status = await service.status()
        print(f"{status.num_ready} replicas again, {status.losses} lost")

        await service.resize(1)
        print("pids of all replicas:", len((await tills.pid.fanout()).values()))


asyncio.run(main())

# prints:
#   all served: True
#   3 replicas again, 1 lost
#   pids of all replicas: 1
