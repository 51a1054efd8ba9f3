"""Read the memory of two hosts from each other, and compare what arrives.

Each actor registers a tensor and sends its handle: some 200 bytes. The other actor copies the data
into its own memory, without a message and without action by the owner. Mesh selects the transport:
here both hosts are processes of one machine; between machines it uses verbs or TCP.
"""

import hashlib
import time

import torch
from torch import Tensor

from mesh_core import Actor, current_rank, endpoint
from mesh_jobs import ProcessJob
from mesh_rdma import RDMABuffer

SIZE, ROUNDS = 32 << 20, 3


class Player(Actor):
    def __init__(self) -> None:
        torch.manual_seed(current_rank().rank)
        self.data = torch.rand(SIZE // 4)
        self.received = torch.zeros(SIZE // 4)

    @endpoint
    def handle(self) -> RDMABuffer:
        return RDMABuffer(self.data)

    @endpoint
    async def read_from(self, there: RDMABuffer) -> float:
        """Return how many seconds the copy takes."""
        self.received.zero_()
        began = time.perf_counter()
        await there.read_into(self.received, timeout=60)
        return time.perf_counter() - began

    @endpoint
    def digests(self) -> tuple[str, str]:
        return digest(self.data), digest(self.received)


def digest(data: Tensor) -> str:
    return hashlib.sha256(data.numpy()).hexdigest()


job = ProcessJob({"workers": 2})
try:
    players = job.state(timeout=60).workers.spawn_procs().spawn("players", Player)
    one, other = players.slice(hosts=0), players.slice(hosts=1)
    handles = [player.handle.call_one().get() for player in (one, other)]
    for turn in range(ROUNDS):
        for name, reader, owner, there in (
            ("ping", one, other, handles[1]),
            ("pong", other, one, handles[0]),
        ):
            took_s = reader.read_from.call_one(there).get()
            _, received = reader.digests.call_one().get()
            expected, _ = owner.digests.call_one().get()
            verdict = "equal" if received == expected else "DIFFERENT"
            print(f"{turn} {name}: {verdict}, {SIZE / took_s / 1e9:.2f} GB/s")
            assert received == expected
finally:
    job.kill()

# prints:
#   0 ping: equal, ... GB/s
#   0 pong: equal, ... GB/s
#   2 pong: equal, ... GB/s
