"""The interfaces for extensions and for their tests are typed, too."""

from pathlib import Path
from typing import assert_type

from mesh_core import (
    Actor,
    ActorAddr,
    Future,
    ProcId,
    ProcMesh,
    TraceContext,
    context,
    endpoint,
    get_meter,
    get_or_spawn_controller,
    span,
    traced,
)
from mesh_core.spi import (
    Event,
    EventStream,
    LogLine,
    MessageLog,
    Meter,
    SpanIdentity,
    register_proc_mesh_spawn_callback,
)
from mesh_core.testing import LocalProcs, kill_proc, proc_pid, wait_until


class Registry(Actor):
    def __init__(self, size: int) -> None:
        self.size = size

    @endpoint
    def find(self, name: str) -> int:
        return len(name)


registry = get_or_spawn_controller("registry", Registry, 3)
assert_type(registry, Future[Registry])
assert_type(registry.get().find.call_one("x"), Future[int])
get_or_spawn_controller("registry", Registry)  # expect-error: size is missing
get_or_spawn_controller("registry", Registry, "no")  # expect-error: size is an int
get_or_spawn_controller("registry", int)  # expect-error: not an actor

with EventStream.subscribe({"sent"}, len_max=10) as stream:
    assert_type(stream, EventStream)
    assert_type(stream.poll(), list[Event])
    for event in stream.events(timeout=1.0):
        assert_type(event.kind, str)
        assert_type(event.value, float | None)
        if isinstance(event.subject, LogLine):
            assert_type(event.subject.slot, int)
        if isinstance(event.subject, SpanIdentity):
            assert_type(event.subject.context, TraceContext)
            assert_type(event.subject.parent, TraceContext | None)
log = MessageLog(100, since_start=True)
assert_type(log, MessageLog)
assert_type(log.endpoint_names(), tuple[str, ...])
assert_type(log.state().ended, list[tuple[Path, int]])
assert_type(log.close(), MessageLog.State)
MessageLog(since_start=True)  # expect-error: waiting_max is missing
log.extend("file", 100, Path("coming"), "1.", ".seg")  # expect-error: a descriptor is an int
EventStream.subscribe([1])  # expect-error: kinds are strings
EventStream.subscribe(len_max="no")  # expect-error: a length is an int
register_proc_mesh_spawn_callback(lambda mesh: mesh.stop())
register_proc_mesh_spawn_callback(3)  # expect-error: not callable


@traced
def double(n: int) -> int:
    return 2 * n


@traced(name="upper")
async def upper(text: str) -> str:
    return text.upper()


assert_type(double(3), int)
double("no")  # expect-error: n is an int
upper(3)  # expect-error: text is a str
span(3)  # expect-error: a name is a str
assert_type(get_meter().create_counter("steps"), Meter.Counter)
assert_type(get_meter().create_gauge("loss"), Meter.Gauge)
get_meter().create_counter("steps").add("no")  # expect-error: an amount is a number
get_meter().create_gauge("loss").set(0.5, {"rank": 0})

me = context().actor_instance
assert_type(me.actor_id, ActorAddr)
assert_type(me.proc_id, ProcId)
assert_type(me.actor_id.proc_id.slot, int)


def test_something(local_procs: LocalProcs) -> None:
    procs = local_procs({"gpus": 2})
    assert_type(procs, ProcMesh)
    assert_type(kill_proc(procs, 1), int)
    assert_type(proc_pid(procs), int)
    assert_type(wait_until(lambda: 3), int)
    kill_proc(procs, "no")  # expect-error: a rank is an int or a point
    local_procs(["gpus"])  # expect-error: dimensions need sizes
