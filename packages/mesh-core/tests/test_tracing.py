"""Spans, metrics and the names of objects."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest

from mesh_core import (
    Actor,
    ActorAddr,
    Port,
    ProcId,
    TraceContext,
    concurrent_endpoint,
    context,
    endpoint,
    get_meter,
    span,
    this_proc,
    traced,
    with_trace_context,
)
from mesh_core.compat import Uid
from mesh_core.spi import Event, EventStream, Meter, SpanIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh


@pytest.fixture
def stream() -> Iterator[EventStream]:
    with EventStream.subscribe({"span_begin", "span_end", "metric"}) as stream:
        yield stream


def spans(stream: EventStream) -> list[tuple[str, str]]:
    return [(event.kind.removeprefix("span_"), event.text) for event in stream.poll()]


class Worker(Actor):
    @endpoint
    def work(self) -> int:
        with span("work"):
            get_meter().create_counter("steps").add(1)
        return self_port()


HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Tracer(Actor):
    """Returns the span in which it runs."""

    @endpoint
    def now(self) -> TraceContext | None:
        return TraceContext.current()

    @endpoint
    def listen(self) -> None:
        self.stream = EventStream.subscribe({"span_begin", "span_end"})

    @endpoint
    def begun(self) -> list[tuple[str, TraceContext, TraceContext | None]]:
        events = self.stream.poll()
        return [(event.text, *ids(event)) for event in events if event.kind == "span_begin"]

    @endpoint
    def inner(self, other: Tracer) -> TraceContext | None:
        with span("inner"):
            return other.now.call_one().get()


class AsyncTracer(Actor):
    @concurrent_endpoint
    async def now(self) -> tuple[TraceContext | None, TraceContext | None]:
        async def later() -> TraceContext | None:
            await asyncio.sleep(0)
            return TraceContext.current()

        return TraceContext.current(), await asyncio.create_task(later())

    @endpoint
    def plain(self) -> TraceContext | None:
        return TraceContext.current()


def ids(event: Event) -> tuple[TraceContext, TraceContext | None]:
    assert isinstance(event.subject, SpanIdentity)
    return event.subject.context, event.subject.parent


def begun(stream: EventStream) -> dict[str, tuple[TraceContext, TraceContext | None]]:
    return {event.text: ids(event) for event in stream.poll() if event.kind == "span_begin"}


def self_port() -> int:
    address = ActorAddr.from_string(str(context().actor_instance.actor_id))
    return address.port


def test_a_span_emits_begin_and_end_events(stream: EventStream) -> None:
    with span("load", {"rows": 3}):
        pass
    begin, end = stream.poll()
    assert (begin.kind, end.kind) == ("span_begin", "span_end")
    assert (begin.text, begin.attributes, begin.call) == ("load", {"rows": 3}, end.call)
    assert begin.time_ns <= end.time_ns


def test_a_span_refers_to_its_enclosing_span(stream: EventStream) -> None:
    with span("outer"), span("inner"):
        pass
    outer, inner, _, _ = stream.poll()
    assert (outer.size, inner.size) == (0, outer.call)


def test_a_span_records_that_an_exception_ended_it(stream: EventStream) -> None:
    with pytest.raises(KeyError), span("load"):
        raise KeyError
    assert [event.code for event in stream.poll()] == [0, 1]


async def test_spans_of_tasks_do_not_mix(stream: EventStream) -> None:
    async def one(name: str) -> None:
        with span(name):
            await asyncio.sleep(0)
            with span(name + ".inner"):
                await asyncio.sleep(0)

    await asyncio.gather(one("a"), one("b"))
    begins = {event.text: event for event in stream.poll() if event.kind == "span_begin"}
    assert begins["a.inner"].size == begins["a"].call
    assert begins["b.inner"].size == begins["b"].call


def test_traced_functions_are_spans(stream: EventStream) -> None:
    @traced
    def double(n: int) -> int:
        return 2 * n

    @traced(name="shout")
    async def upper(text: str) -> str:
        return text.upper()

    assert (double(2), asyncio.run(upper("a"))) == (4, "A")
    names = [name.rpartition(".")[2] for _, name in spans(stream)]
    assert names == ["double", "double", "shout", "shout"]
    assert double.__name__ == "double"


@pytest.mark.parametrize("amount", [3, 2.5])
def test_measurements_keep_their_values(stream: EventStream, amount: float) -> None:
    meter = get_meter()
    meter.create_counter("steps", unit="1", description="batches").add(amount, {"rank": 0})
    meter.create_up_down_counter("queue").add(-amount)
    meter.create_histogram("latency").record(amount)
    meter.create_gauge("loss").set(amount)
    found = [(event.text, event.value, event.attributes) for event in stream.poll()]
    assert found == [
        ("steps", amount, {"rank": 0}),
        ("queue", -amount, None),
        ("latency", amount, None),
        ("loss", amount, None),
    ]


def test_measurement_carries_its_instrument(stream: EventStream) -> None:
    get_meter().create_counter("steps", unit="s", description="time").add(1)
    (event,) = stream.poll()
    assert isinstance(event.subject, Meter.Counter)
    assert (event.subject.name, event.subject.unit, event.subject.description) == (
        "steps",
        "s",
        "time",
    )


def test_a_counter_cannot_decrease() -> None:
    with pytest.raises(ValueError, match="use an up_down_counter"):
        get_meter().create_counter("steps").add(-1)


def test_without_subscriber_nothing_is_recorded() -> None:
    with span("load"):
        get_meter().create_gauge("loss").set(1)
    with EventStream.subscribe({"span_begin", "span_end", "metric"}) as late:
        assert late.poll() == []


def test_span_belongs_to_the_actor_that_runs(stream: EventStream) -> None:
    worker = this_proc().spawn("worker", Worker)
    port = worker.work.call_one().get()
    found: list[Event] = stream.poll()
    assert {event.actor for event in found} == {port}
    worker.stop().get()


def test_nested_spans_share_one_trace(stream: EventStream) -> None:
    with span("outer"):
        with span("first"):
            pass
        with span("second"):
            pass
    with span("other"):
        pass
    found = begun(stream)
    outer, _ = found["outer"]
    assert found["outer"][1] is found["other"][1] is None
    assert found["first"][1] == found["second"][1] == outer
    assert {found[name][0].trace_id for name in ("first", "second")} == {outer.trace_id}
    assert found["other"][0].trace_id != outer.trace_id
    assert len({own.span_id for own, _ in found.values()}) == 4
    assert outer.is_sampled


def test_a_call_runs_in_the_span_of_its_caller(stream: EventStream, proc: ProcMesh) -> None:
    tracer = proc.spawn("tracer", Tracer)
    assert tracer.now.call_one().get() is None
    with span("ask"):
        here = TraceContext.current()
        there = tracer.now.call_one().get()
    assert here is not None
    assert here == there == begun(stream)["ask"][0]
    assert tracer.now.call_one().get() is None


def test_spans_share_one_trace_across_processes(stream: EventStream, proc: ProcMesh) -> None:
    near, far = this_proc().spawn("near", Tracer), proc.spawn("far", Tracer)
    far.listen.call_one().get()
    with span("program"):
        asked_from = near.inner.call_one(far).get()
        far.inner.call_one(near).get()
    ((name, own, parent),) = far.begun.call_one().get()
    found = begun(stream)
    program, _ = found["program"]
    assert (name, parent, own.trace_id) == ("inner", program, program.trace_id)
    inner, around = found["inner"]
    assert (around, inner) == (program, asked_from)
    near.stop().get()


def test_an_external_trace_is_continued(stream: EventStream, proc: ProcMesh) -> None:
    tracer = proc.spawn("tracer", Tracer)
    theirs = TraceContext.from_traceparent(HEADER)
    with with_trace_context(theirs):
        assert TraceContext.current() == theirs == tracer.now.call_one().get()
        with with_trace_context(None), span("ours"):
            pass
    assert TraceContext.current() is None
    own, parent = begun(stream)["ours"]
    assert (own.trace_id, parent) == (theirs.trace_id, theirs)


def test_an_unsampled_trace_stays_unsampled(stream: EventStream, proc: ProcMesh) -> None:
    tracer = proc.spawn("tracer", Tracer)
    with with_trace_context(TraceContext.from_traceparent(HEADER[:-1] + "0")), span("quiet"):
        there = tracer.now.call_one().get()
    assert there is not None
    assert not there.is_sampled
    assert not begun(stream)["quiet"][0].is_sampled


def test_without_subscriber_no_trace_is_sent(proc: ProcMesh) -> None:
    tracer = proc.spawn("tracer", Tracer)
    with with_trace_context(TraceContext.from_traceparent(HEADER)), span("load"):
        assert tracer.now.call_one().get() is None


def test_the_span_of_a_message_does_not_leak_into_the_next_message(
    stream: EventStream, proc: ProcMesh
) -> None:
    tracer = proc.spawn("tracer", Tracer)
    with span("one"):
        traced_call = tracer.now.call_one()
    plain_call = tracer.now.call_one()
    assert traced_call.get() == begun(stream)["one"][0]
    assert plain_call.get() is None


async def test_tasks_of_an_endpoint_are_in_the_span_of_its_caller(
    stream: EventStream, proc: ProcMesh
) -> None:
    tracer = proc.spawn("tracer", AsyncTracer)

    async def ask(name: str) -> list[TraceContext | None]:
        with span(name):
            own = TraceContext.current()
            return [own, *await tracer.now.call_one(), await tracer.plain.call_one()]

    both = await asyncio.gather(ask("a"), ask("b"))
    found = begun(stream)
    assert [set(seen) for seen in both] == [{found["a"][0]}, {found["b"][0]}]


class Teller(Actor):
    @endpoint(explicit_response_port=True)
    def tell(self, port: Port[TraceContext | None]) -> None:
        port.send(TraceContext.current())


def test_an_endpoint_with_a_port_is_in_the_span_of_its_caller(stream: EventStream) -> None:
    teller = this_proc().spawn("teller", Teller)
    with span("ask"):
        told = teller.tell.call_one().get()
    assert told == begun(stream)["ask"][0]
    teller.stop().get()


def test_a_trace_context_is_a_hashable_picklable_value() -> None:
    context = TraceContext.from_traceparent(f" {HEADER}\n")
    assert context.traceparent == HEADER
    assert context == TraceContext(context.trace_id, context.span_id) != HEADER
    assert {context: 1}[pickle.loads(pickle.dumps(context))] == 1
    assert not TraceContext(context.trace_id, context.span_id, is_sampled=False).is_sampled
    later = TraceContext.from_traceparent("cc" + HEADER[2:] + "-what-comes-later")
    assert later == context


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        HEADER.upper(),
        HEADER + "-x",
        "ff" + HEADER[2:],
        HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        HEADER.replace("00f067aa0ba902b7", "0" * 16),
        HEADER[:-1],
    ],
)
def test_an_invalid_trace_context_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        TraceContext.from_traceparent(text)


def test_an_actor_address_can_be_split_into_its_parts(proc: ProcMesh) -> None:
    address = ActorAddr("big/0.3:17", "trainer")
    assert (address.proc_id, address.proc_name, address.port) == ("big/0.3", "0.3", 17)
    assert (address.actor_name, address.label, address.addr) == ("trainer", "trainer", "big/0.3:17")
    assert (address.proc_id.host_name, address.proc_id.host, address.proc_id.slot) == ("big", 0, 3)
    assert not address.is_root
    assert ActorAddr("big/0.0:0").is_root


@pytest.mark.parametrize("value", [ActorAddr("big/0.3:17", "x"), ProcId("big/0.3"), Uid("0" * 16)])
def test_addresses_and_ids_survive_pickling_and_parsing(value: ActorAddr | ProcId | Uid) -> None:
    copy = pickle.loads(pickle.dumps(value))
    assert (copy, type(copy)) == (value, type(value))
    assert type(value).from_string(str(value)) == value
    assert {value: 1}[str(value)] == 1  # type: ignore[index]


@pytest.mark.parametrize("text", ["", "big", "big/0", "big/0.3", "big/0.3:x"])
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        ActorAddr(text)


def test_uids_are_unique_and_labelled() -> None:
    assert Uid.anonymous() != Uid.anonymous()
    assert Uid.anonymous().label is None
    assert Uid.instance("data-loader.2").label == "data-loader.2"
    with pytest.raises(ValueError, match="rename it"):
        Uid.instance("data loader")


def test_the_address_of_the_program_is_a_root_address() -> None:
    me = context().actor_instance
    assert me.actor_id.is_root
    assert me.proc_id == me.actor_id.proc_id
