"""Buffers and the results of their transfers are typed."""

from typing import assert_type

from mesh_core import Future
from mesh_rdma import (
    Layout,
    RDMAAction,
    RDMABuffer,
    Replicas,
    Replicate,
    Schedule,
    Shard,
    VersionedBuffer,
    allocate,
    collect,
    plan_reshard,
    replicate,
    spread,
)

memory = allocate(4096)
assert_type(memory, memoryview)
buffer = RDMABuffer(memory)
assert_type(buffer[:8], RDMABuffer)
assert_type(buffer.read_into(bytearray(4096), timeout=0.5), Future[None])
assert_type(buffer.fetch_add(1, offset=8), Future[int])
assert_type(buffer.drop(), Future[None])
assert_type(RDMAAction().read_remote(bytearray(8), buffer[:8]), RDMAAction)

weights = VersionedBuffer(4096)
with weights.write(step=1) as version_memory:
    assert_type(version_memory, memoryview)
assert_type(weights.reader().read_into(bytearray(4096)), Future[int])

assert_type(buffer.copy_from(buffer, length=8), Future[None])
assert_type(spread(buffer[:8], [buffer]), Future[None])
assert_type(collect([buffer], buffer, offsets=[0]), Future[None])
assert_type(replicate(buffer, [buffer]), Future[Replicas])
rows = Layout.of((8, 8), 4, {"tp": 2}, [Shard(0)])
schedule = plan_reshard(rows, Layout.of((8, 8), 4, [2], [Replicate()]))
assert_type(schedule, Schedule)
assert_type(schedule.run([buffer, buffer], [buffer, None]), Future[None])

buffer.read_into(bytearray(8), 60)  # expect-error: timeout is keyword-only
RDMABuffer()  # expect-error: memory is missing
