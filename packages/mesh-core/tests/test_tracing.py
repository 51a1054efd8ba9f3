"""Spans, measurements and the names of things."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest

from mesh_core import (
    Actor,
    ActorAddr,
    ProcId,
    Uid,
    context,
    endpoint,
    get_meter,
    span,
    this_proc,
    traced,
)
from mesh_core.spi import Counter, Event, EventStream, subscribe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh


@pytest.fixture
def stream() -> Iterator[EventStream]:
    with subscribe({"span_begin", "span_end", "metric"}) as stream:
        yield stream


def spans(stream: EventStream) -> list[tuple[str, str]]:
    return [(event.kind.removeprefix("span_"), event.text) for event in stream.poll()]


class Worker(Actor):
    @endpoint
    def work(self) -> int:
        with span("work"):
            get_meter().create_counter("steps").add(1)
        return self_port()


def self_port() -> int:
    address = ActorAddr.from_string(str(context().actor_instance.actor_id))
    return address.port


def test_span_tells_when_it_begins_and_ends(stream: EventStream) -> None:
    with span("load", {"rows": 3}):
        pass
    begin, end = stream.poll()
    assert (begin.kind, end.kind) == ("span_begin", "span_end")
    assert (begin.text, begin.attributes, begin.call) == ("load", {"rows": 3}, end.call)
    assert begin.time_ns <= end.time_ns


def test_span_knows_the_span_around_it(stream: EventStream) -> None:
    with span("outer"), span("inner"):
        pass
    outer, inner, _, _ = stream.poll()
    assert (outer.size, inner.size) == (0, outer.call)


def test_span_says_that_an_exception_ended_it(stream: EventStream) -> None:
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
    assert isinstance(event.subject, Counter)
    assert (event.subject.name, event.subject.unit, event.subject.description) == (
        "steps",
        "s",
        "time",
    )


def test_counter_does_not_fall() -> None:
    with pytest.raises(ValueError, match="use an up_down_counter"):
        get_meter().create_counter("steps").add(-1)


def test_without_subscriber_nothing_is_recorded() -> None:
    with span("load"):
        get_meter().create_gauge("loss").set(1)
    with subscribe({"span_begin", "span_end", "metric"}) as late:
        assert late.poll() == []


def test_span_belongs_to_the_actor_that_runs(stream: EventStream) -> None:
    worker = this_proc().spawn("worker", Worker)
    port = worker.work.call_one().get()
    found: list[Event] = stream.poll()
    assert {event.actor for event in found} == {port}
    worker.stop().get()


def test_address_of_an_actor_can_be_taken_apart(proc: ProcMesh) -> None:
    address = ActorAddr("big/0.3:17", "trainer")
    assert (address.proc_id, address.proc_name, address.port) == ("big/0.3", "0.3", 17)
    assert (address.actor_name, address.label, address.addr) == ("trainer", "trainer", "big/0.3:17")
    assert (address.proc_id.host_name, address.proc_id.host, address.proc_id.slot) == ("big", 0, 3)
    assert not address.is_root
    assert ActorAddr("big/0.0:0").is_root


@pytest.mark.parametrize("value", [ActorAddr("big/0.3:17", "x"), ProcId("big/0.3"), Uid("0" * 16)])
def test_names_are_strings_that_travel(value: ActorAddr | ProcId | Uid) -> None:
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


def test_own_address_is_one() -> None:
    me = context().actor_instance
    assert me.actor_id.is_root
    assert me.proc_id == me.actor_id.proc_id
