"""Copy weights from trainers to generators with a different sharding, while training continues.

Each of four trainers has a range of rows, and each of four generators a quarter of the matrix. A
trainer publishes a version per step, and versions are held during the transfer, so no generator
reads a partly written one. The schedule of transfers is computed once. The generators fetch their
parts concurrently, and the data does not pass through this script.
"""

import numpy as np

from mesh_core import Actor, current_rank, endpoint, this_host
from mesh_rdma import (
    Layout,
    RDMABuffer,
    Shard,
    VersionedBuffer,
    VersionedReader,
    allocate,
    plan_reshard,
)

SHAPE = (2048, 1024)
ITEM = np.dtype(np.float32)
TRAINED = Layout.of(SHAPE, ITEM.itemsize, [4], [Shard(0)])
USED = Layout.of(SHAPE, ITEM.itemsize, [2, 2], [Shard(0), Shard(1)])
STEPS = 3


class Trainer(Actor):
    def __init__(self) -> None:
        self.rank = current_rank().rank
        self.weights = np.zeros(TRAINED.shards[self.rank].sizes, ITEM)
        self.published = VersionedBuffer(self.weights.nbytes)

    @endpoint
    def reader(self) -> VersionedReader:
        return self.published.reader()

    @endpoint
    def train(self, step: int) -> None:
        self.weights += 1 + self.rank / 10  # each rank has a different gradient
        self.published.publish(self.weights, step=step)


class Generator(Actor):
    def __init__(self) -> None:
        rank = current_rank().rank
        memory = allocate(USED.nbytes(rank))
        self.weights = np.frombuffer(memory, ITEM).reshape(USED.shards[rank].sizes)
        self.destination = RDMABuffer(memory)

    @endpoint
    def buffer(self) -> RDMABuffer:
        return self.destination

    @endpoint
    def generate(self) -> str:
        top, bottom = self.weights[0, 0], self.weights[-1, 0]
        return f"{self.weights.shape} from {top:.1f} to {bottom:.1f}"


trainers = this_host().spawn_procs({"trainers": 4}).spawn("trainers", Trainer)
generators = this_host().spawn_procs({"generators": 4}).spawn("generators", Generator)
readers = trainers.reader.call().get().values()
buffers = generators.buffer.call().get().values()

schedule = plan_reshard(TRAINED, USED)
print(f"each step moves {schedule.nbytes >> 20} MB in {len(schedule.moves)} moves")

training = trainers.train.call(1)
for step in range(1, STEPS + 1):
    training.get()
    versions = [reader.hold(after=step - 1) for reader in readers]
    training = trainers.train.call(step + 1)  # trains while the weights of this step are copied
    schedule.run([version.buffer for version in versions], buffers).get()
    for version in versions:
        version.release()
    seen = generators.generate.call().get().values()
    print(f"step {step}: first generator {seen[0]}, last one {seen[-1]}")
training.get()

# prints:
#   each step moves 8 MB in 8 moves
#   step 1: first generator (1024, 512) from 1.0 to 1.1, last one (1024, 512) from 1.2 to 1.3
#   step 2: first generator (1024, 512) from 2.0 to 2.2, last one (1024, 512) from 2.4 to 2.6
#   step 3: first generator (1024, 512) from 3.0 to 3.3, last one (1024, 512) from 3.6 to 3.9
