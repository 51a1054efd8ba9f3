"""A mesh and every slice of it have the type of the class that was spawned."""

from typing import Literal, assert_type

from mesh_core import (
    Actor,
    Extent,
    Future,
    HostMesh,
    Point,
    ProcDied,
    ProcMesh,
    endpoint,
    this_host,
    this_proc,
)


class Counter(Actor):
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


class Plain(Actor):
    pass


class NotAnActor:
    pass


assert_type(this_host(), HostMesh)
assert_type(this_proc(), ProcMesh)
procs = this_host().spawn_procs({"hosts": 2, "gpus": 4})
assert_type(procs, ProcMesh)
assert_type(procs.slice(gpus=0), ProcMesh)
assert_type(procs.host_mesh, HostMesh)
this_host().spawn_procs({"gpus": "two"})  # expect-error: a size is an int
this_host().spawn_procs(["gpus"])  # expect-error: dimensions need sizes

# The rank of a dead process is always known.
try:
    procs.initialized.get()
except ProcDied as died:
    procs.replace(died.rank)

counters = procs.spawn("counters", Counter, 40)
assert_type(counters, Counter)
procs.spawn("counters", Counter, 40, step=2)
procs.spawn("plain", Plain)
procs.spawn("counters", Counter)  # expect-error: start is missing
procs.spawn("counters", Counter, "no")  # expect-error: start is an int
procs.spawn("counters", Counter, 40, width=3)  # expect-error: no such argument
procs.spawn("plain", Plain, 40)  # expect-error: Plain takes no arguments
procs.spawn("no", NotAnActor)  # expect-error: not an actor
procs.spawn(3, Counter, 40)  # expect-error: a name is a str
assert_type(procs.spawn("counters", Counter, 40, restart="transient"), Counter)
assert_type(procs.spawn("counters", Counter, 40, mailbox_len_max=10), Counter)
procs.spawn("counters", Counter, 40, mailbox_len_max="no")  # expect-error: the length is an int

# A slice of a mesh has the endpoints of the whole mesh.
assert_type(counters.slice(gpus=0), Counter)
assert_type(counters.slice(gpus=slice(0, 2)).add.call_one(1), Future[int])
assert_type(counters.flatten("all"), Counter)
assert_type(counters.rename(gpus="ranks"), Counter)
assert_type(counters.split(gpus=("a", "b"), a=2), Counter)
assert_type(counters.extent, Extent)
assert_type(counters.sizes, dict[str, int])
assert_type(len(counters), int)
for one in procs:
    assert_type(one, ProcMesh)
for counter in counters:
    assert_type(counter, Counter)
assert_type(counters[0], Counter)
assert_type(counters[Point(0, counters.extent)], Counter)
counters.slice(0)  # expect-error: dimensions have names
counters.slice(gpus="no")  # expect-error: an int, a slice or a list
counters.subtract.call(3)  # expect-error: no such endpoint

assert_type(procs.stop(), Future[None])
assert_type(counters.stop(), Future[None])
assert_type(counters.initialized.get(timeout=1.0), Literal[True])
