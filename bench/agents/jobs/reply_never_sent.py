"""A broker keeps the ports of its callers and answers all but one of them."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, Port, endpoint, this_host


class Broker(Actor):
    def __init__(self) -> None:
        self.open: list[Port[int]] = []

    @endpoint(explicit_response_port=True)
    def bid(self, port: Port[int], amount: int) -> None:
        self.open.append(port)
        if amount > 1:
            port.send(amount)


class Bidder(Actor):
    @endpoint
    def offer(self, broker: object, amount: int) -> int:
        return broker.bid.call_one(amount).get()  # type: ignore[attr-defined]


with broken_program():
    procs = this_host().spawn_procs({"n": 4}, name="auction")
    broker = procs.slice(n=0).spawn("broker", Broker)
    bidders = procs.slice(n=slice(1, 4)).spawn("bidders", Bidder)
    for rank in range(3):
        bidders.slice(n=rank).offer.call_one(broker, rank + 1)
