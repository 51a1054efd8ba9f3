"""Every verb of an endpoint checks each argument, and its result is typed."""

from typing import assert_type

from mesh_core import Actor, Future, Port, ValueMesh, concurrent_endpoint, endpoint, this_host
from mesh_core.compat import send


class Trainer(Actor):
    def __init__(self, width: int, *, name: str = "") -> None:
        self.width = width

    @endpoint
    def step(self, batch: list[int], scale: float = 1.0) -> int:
        return len(batch)

    @endpoint
    async def loss(self, step: int) -> float:
        return float(step)

    @concurrent_endpoint
    async def watch(self, topic: str) -> bytes:
        return topic.encode()

    @endpoint(instrument=False)
    def tag(self, key: str) -> None: ...

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[str], delay_s: float) -> None:
        port.send("done")

    @endpoint(explicit_response_port=True)
    async def later_still(self, port: Port[str]) -> None:
        port.send(3)  # expect-error: the port takes a str


trainers = this_host().spawn_procs({"gpus": 2}).spawn("trainers", Trainer, 4)

assert_type(trainers.step.call([1]), Future[ValueMesh[int]])
assert_type(trainers.step.call_one([1], 0.5), Future[int])
assert_type(trainers.step.choose([1], scale=0.5), Future[int])
assert_type(trainers.step.broadcast([1]), None)
assert_type(trainers.step.call_one([1]).get(), int)
assert_type(trainers.step.call([1]).get().values(), list[int])
for answer in trainers.step.stream([1]):
    assert_type(answer, Future[int])
for _, ranked in trainers.step.stream([1]).with_ranks():
    assert_type(ranked, Future[int])

trainers.step.call("no")  # expect-error: batch is a list of int
trainers.step.call([1], scale="no")  # expect-error: scale is a float
trainers.step.call()  # expect-error: batch is missing
trainers.step.call([1], 0.5, 3)  # expect-error: one argument too many
trainers.step.call([1], size=3)  # expect-error: no such argument
trainers.step.call_one("no")  # expect-error: batch is a list of int
trainers.step.choose("no")  # expect-error: batch is a list of int
trainers.step.broadcast("no")  # expect-error: batch is a list of int
trainers.step.stream("no")  # expect-error: batch is a list of int

# The result of an async endpoint is its return value, not the coroutine.
assert_type(trainers.loss.call_one(1), Future[float])
assert_type(trainers.watch.call("x"), Future[ValueMesh[bytes]])
trainers.loss.call_one("no")  # expect-error: step is an int
trainers.watch.call(3)  # expect-error: topic is a str

# Options of the decorator change neither arguments nor results.
assert_type(trainers.tag.call_one("x"), Future[None])
trainers.tag.call_one(3)  # expect-error: key is a str

# Mesh provides the port, whose type is the type of the result.
assert_type(trainers.later.call_one(0.5), Future[str])
assert_type(trainers.later.call(delay_s=0.5), Future[ValueMesh[str]])
assert_type(trainers.later_still.call_one(), Future[str])
trainers.later.call_one("no")  # expect-error: delay_s is a float
trainers.later.call_one()  # expect-error: delay_s is missing

# `options` preserves arguments and results.
assert_type(trainers.step.options(timeout=1.0).call_one([1]), Future[int])
trainers.step.options(timeout=1.0).call_one("no")  # expect-error: batch is a list of int
trainers.step.options(timeout="soon")  # expect-error: timeout is a number
send(trainers.step, ("x",), {}, selection="some")  # expect-error: all or choose


async def use() -> None:
    assert_type(await trainers.step.call_one([1]), int)
    assert_type(await trainers.loss.call(1), ValueMesh[float])
    async for value in trainers.step.stream([1]):
        assert_type(value, int)
