"""The values of a channel and the result of a fold are typed."""

from typing import assert_type

from mesh_core import (
    Accumulator,
    Actor,
    Channel,
    Future,
    Point,
    Port,
    PortReceiver,
    ValueMesh,
    endpoint,
    this_proc,
)
from mesh_core.compat import RankedPortReceiver


class Source(Actor):
    @endpoint
    def numbers(self, port: Port[int], count: int) -> str:
        port.send(count)
        return "sent"


port, receiver = Channel[int].open()
assert_type(port, Port[int])
assert_type(receiver, PortReceiver[int])
assert_type(receiver.recv(), Future[int])
assert_type(receiver.recv().get(), int)
port.send("no")  # expect-error: the port takes an int
port.exception("no")  # expect-error: not an exception

ranked_port, ranked = Channel[int].open_ranked()
assert_type(ranked, RankedPortReceiver[int])
assert_type(ranked.recv(), Future[tuple[int, int]])

texts: Port[str] = Channel[str].open(once=True)[0]
source = this_proc().spawn("source", Source)
assert_type(source.numbers.call_one(port, 3), Future[str])
source.numbers.call_one(texts, 3)  # expect-error: texts is not a port of int

fold = Accumulator(source.numbers, 0, lambda total, text: total + len(text))
assert_type(fold.accumulate(port, 3), Future[int])
fold.accumulate(port, "no")  # expect-error: count is an int

values = source.numbers.call(port, 3).get()
assert_type(values, ValueMesh[str])
assert_type(values.item(gpus=0), str)
assert_type(values.slice(gpus=slice(0, 1)), ValueMesh[str])
for point, value in values.items():
    assert_type(point, Point)
    assert_type(value, str)


async def use() -> None:
    assert_type(await receiver.recv(), int)
    async for number in receiver:
        assert_type(number, int)
    async for pair in ranked:
        assert_type(pair, tuple[int, int])
