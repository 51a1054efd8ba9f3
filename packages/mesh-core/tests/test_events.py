"""The event stream of a process, for all subscribers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from whole_program import run

from mesh_core import Actor, Channel, ProcDied, RestartPolicy, context, endpoint, span, this_proc
from mesh_core._observability.clock_difference import clock_difference_ns
from mesh_core.spi import Event, EventStream, LogLine, register_proc_mesh_spawn_callback
from mesh_core.testing import LocalProcs, kill_proc, local_procs, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mesh_core import ProcMesh

__all__ = ["local_procs"]

CALL = ["sent", "received", "taken", "answered", "completed"]


class Worker(Actor):
    @endpoint
    def add(self, n: int) -> int:
        return n + 1

    @endpoint
    def wait(self) -> None:
        threading.Event().wait(0.5)

    @endpoint
    def shout(self, text: str) -> None:
        print(text, flush=True)

    @endpoint
    def fail(self) -> None:
        context().actor_instance.abort("told to")


class Asker(Actor):
    @endpoint
    def ask(self, worker: Worker) -> int:
        worker.add.call_one(1).get()
        return context().actor_instance.actor_id.port


def named(stream: EventStream, endpoint: str) -> list[Event]:
    return [event for event in stream.poll() if event.endpoint == endpoint]


class Owner(Actor):
    def __init__(self) -> None:
        self.child = this_proc().spawn("child", Worker)

    @endpoint
    def fail_child(self) -> None:
        self.child.fail.call_one().get()

    def __supervise__(self, failure: object) -> bool:
        return True


def collect(stream: EventStream, kind: str, count: int = 1) -> list[Event]:
    """Wait for this number of events of a kind, and return them."""
    found: list[Event] = []

    def is_there() -> bool:
        found.extend(event for event in stream.poll() if event.kind == kind)
        return len(found) >= count

    wait_until(is_there)
    return found[:count]


def test_events_of_a_call_are_in_order_and_share_one_id() -> None:
    worker = this_proc().spawn("worker", Worker)
    worker.add.call_one(0).get()
    with EventStream.subscribe(CALL) as stream:
        worker.add.call_one(1).get()
        found = stream.poll()
    assert [event.kind for event in found] == CALL
    assert len({event.call for event in found}) == 1
    assert len({event.actor for event in found}) == 1
    assert found[0].size > 0
    worker.stop().get()


def test_only_subscribed_kinds_are_delivered() -> None:
    worker = this_proc().spawn("worker", Worker)
    worker.add.call_one(0).get()
    with EventStream.subscribe(["completed"]) as stream:
        worker.add.call_one(1).get()
        with span("ignored"):
            pass
        assert [event.kind for event in stream.poll()] == ["completed"]
    worker.stop().get()


def test_every_subscriber_gets_all_events() -> None:
    worker = this_proc().spawn("worker", Worker)
    worker.add.call_one(0).get()
    with EventStream.subscribe(CALL) as one, EventStream.subscribe(CALL) as two:
        worker.add.call_one(1).get()
        assert [event.kind for event in one.poll()] == CALL
        worker.add.call_one(1).get()
        assert [event.kind for event in two.poll()] == 2 * CALL
        assert [event.kind for event in one.poll()] == CALL
    worker.stop().get()


def test_a_late_subscriber_gets_no_earlier_events() -> None:
    worker = this_proc().spawn("worker", Worker)
    with EventStream.subscribe(CALL):
        worker.add.call_one(1).get()
        with EventStream.subscribe(CALL) as late:
            assert late.poll() == []
    worker.stop().get()


def test_recording_stops_with_the_last_subscriber() -> None:
    worker = this_proc().spawn("worker", Worker)
    with EventStream.subscribe() as one:
        pass
    worker.add.call_one(1).get()
    assert one.poll() == []
    with EventStream.subscribe(CALL) as two:
        assert two.poll() == []
    worker.stop().get()


def test_events_of_all_kinds_are_merged_by_time() -> None:
    worker = this_proc().spawn("worker", Worker)
    worker.add.call_one(0).get()
    before = time.time_ns()
    with EventStream.subscribe([*CALL, "span_begin", "span_end"]) as stream:
        for _ in range(50):
            with span("call"):
                worker.add.call_one(1).get()
        polled = stream.poll()
    # Actors and processes of earlier tests may still be ending.
    found = [event for event in polled if event.endpoint == "add" or event.text == "call"]
    assert [event.kind for event in found] == 50 * ["span_begin", *CALL, "span_end"]
    assert [event.time_ns for event in found] == sorted(event.time_ns for event in found)
    assert before <= found[0].time_ns + 1_000_000
    assert found[-1].time_ns <= time.time_ns() + 1_000_000
    worker.stop().get()


def test_a_slow_subscriber_loses_the_oldest_events_and_sees_the_count() -> None:
    with EventStream.subscribe(["metric", "span_begin"], len_max=10) as stream:
        for number in range(25):
            with span(str(number)):
                pass
        assert [event.text for event in stream.poll()] == [str(n) for n in range(15, 25)]
        assert stream.dropped == 15


def test_buffered_message_events_are_bounded() -> None:
    port, receiver = Channel[int].open()
    with (
        EventStream.subscribe(["sent"], len_max=16) as stream,
        EventStream.subscribe(["sent"], len_max=40) as other,
    ):
        for number in range(100):
            port.send(number)
            if number % 30 == 0:
                other.poll()
        assert len(stream.poll()) <= 16
        assert stream.dropped > 0
        assert stream._records_len == 0
    assert receiver.recv().get() == 0


def test_poll_returns_at_most_the_requested_number() -> None:
    with EventStream.subscribe(["span_begin"]) as stream:
        for number in range(5):
            with span(str(number)):
                pass
        assert [event.text for event in stream.poll(max=2)] == ["0", "1"]
        assert [event.text for event in stream.poll()] == ["2", "3", "4"]


def test_message_events_name_the_sender_and_its_span() -> None:
    worker = this_proc().spawn("worker", Worker)
    worker.add.call_one(0).get()
    asker = this_proc().spawn("asker", Asker)
    with EventStream.subscribe(CALL) as stream:
        port = asker.ask.call_one(worker).get()
        asked = named(stream, "add")
    assert [event.kind for event in asked] == CALL
    assert {(event.sender, event.span) for event in asked} == {(port, 0)}
    asker.stop().get()
    worker.stop().get()


def test_messages_from_the_program_have_no_sender() -> None:
    worker = this_proc().spawn("worker", Worker)
    with EventStream.subscribe(CALL) as stream:
        worker.add.call_one(0).get()
        assert {event.sender for event in named(stream, "add")} == {0}
    worker.stop().get()


def test_internal_messages_have_no_endpoint() -> None:
    with EventStream.subscribe() as stream:
        worker = this_proc().spawn("worker", Worker)
        worker.initialized.get()
        worker.stop().get()
        assert {event.endpoint for event in stream.poll()} == {""}


def test_endpoint_ids_remain_valid_after_a_job(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        from mesh_core.spi import EventStream
        with EventStream.subscribe() as stream:
            for name in ("say", "add"):
                worker = this_host().spawn_procs().spawn("worker", Worker)
                getattr(worker, name).call_one().get()
                worker.add.call_one().get()
                print(sorted({event.endpoint for event in stream.poll()}))
                shutdown_context().get()
        """,
    )
    assert (ended.status, ended.out.splitlines()) == (
        0,
        ["['', 'add', 'say']", "['', 'add']"],
    )


class Late(Actor):
    """Subscribes in its process after the call, by code that is not recorded."""

    @endpoint
    def add(self, n: int) -> int:
        return n + 1

    @endpoint
    def heard(self, since_start: bool) -> list[str]:
        with EventStream.subscribe(["received"], since_start=since_start) as stream:
            return [event.endpoint for event in stream.poll() if event.endpoint]


@pytest.mark.parametrize(
    ("is_recorded", "since_start", "expected"),
    [(True, True, ["add", "heard"]), (True, False, []), (False, True, [])],
)
def test_a_subscriber_can_request_the_first_messages_of_its_process(
    local_procs: LocalProcs, is_recorded: bool, since_start: bool, expected: list[str]
) -> None:
    with EventStream.subscribe(["sent"] if is_recorded else ["log_line"]):
        late = local_procs().spawn("late", Late)
    late.add.call_one(1).get()
    assert late.heard.call_one(since_start).get() == expected
    assert late.heard.call_one(True).get() == []


def test_iteration_stops_at_the_timeout() -> None:
    with EventStream.subscribe(["span_begin"]) as stream:
        with span("once"):
            pass
        assert [event.text for event in stream.events(timeout=0.01)] == ["once"]


def test_iteration_wakes_for_new_events_and_stops_at_close() -> None:
    seen: list[str] = []
    stream = EventStream.subscribe(["span_begin"])

    def read() -> None:
        seen.extend(event.text for event in stream)

    reader = threading.Thread(target=read)
    reader.start()
    with span("one"):
        pass
    wait_until(lambda: seen == ["one"])
    stream.close()
    reader.join(10)
    assert not reader.is_alive()


def test_iteration_yields_message_events() -> None:
    worker = this_proc().spawn("worker", Worker)
    with EventStream.subscribe(["answered"]) as stream:
        worker.add.call_one(1).get()
        assert next(iter(stream)).kind == "answered"
    worker.stop().get()


@pytest.mark.parametrize(
    ("subscribe_wrongly", "text"),
    [
        (lambda: EventStream.subscribe(["sneezed"]), "unknown kind of event 'sneezed'"),
        (lambda: EventStream.subscribe(len_max=0), "len_max 0 is less than 1"),
    ],
)
def test_an_invalid_subscription_is_refused(
    subscribe_wrongly: Callable[[], object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        subscribe_wrongly()


def test_the_lifecycle_of_an_actor_is_recorded() -> None:
    with EventStream.subscribe(["spawned", "started", "failed", "stopped"]) as stream:
        worker = this_proc().spawn("short-lived", Worker)
        worker.add.call_one(1).get()
        worker.stop().get()
        found = wait_for(stream, "stopped")
    assert [(event.kind, event.text) for event in found] == [
        ("spawned", "short-lived"),
        ("started", "short-lived"),
        ("stopped", "short-lived"),
    ]
    assert len({event.actor for event in found}) == 1


def wait_for(stream: EventStream, kind: str) -> list[Event]:
    """Return all events up to and including the first of a kind."""
    found: list[Event] = []

    def is_there() -> bool:
        found.extend(stream.poll())
        return any(event.kind == kind for event in found)

    wait_until(is_there)
    return found


def test_a_failure_and_its_supervision_are_recorded() -> None:
    with EventStream.subscribe(["failed", "supervised"]) as stream:
        owner = this_proc().spawn("owner", Owner)
        owner.fail_child.call_one().get()
        found = wait_for(stream, "supervised")
    assert [(event.kind, event.text) for event in found] == [
        ("failed", "child"),
        ("supervised", "handled"),
    ]
    assert "told to" in str(found[0].subject)
    assert found[0].call == found[1].call
    owner.stop().get()


def test_process_starts_deaths_and_restarts_are_recorded(local_procs: LocalProcs) -> None:
    with EventStream.subscribe(["proc_started", "proc_died", "restarted"]) as stream:
        procs = local_procs({"gpus": 2}, name="mortal")
        worker = procs.spawn("worker", Worker, restart=RestartPolicy("permanent"))
        worker.add.call(1).get()
        assert [event.rank for event in collect(stream, "proc_started", 2)] == [0, 1]
        kill_proc(procs, 1)
        found = wait_for(stream, "restarted")
    died = next(event for event in found if event.kind == "proc_died")
    assert (died.text, died.rank, died.code) == ("mortal", 1, 1)
    assert died.attributes is not None
    assert died.attributes["signal"] == 9
    again = next(event for event in found if event.kind == "proc_started")
    assert (again.rank, again.attributes) == (1, {"incarnation": 1})
    assert found[-1].kind == "restarted"


def test_lines_printed_by_processes_are_recorded(procs: ProcMesh) -> None:
    workers = procs.spawn("workers", Worker)
    with EventStream.subscribe(["log_line"]) as stream:
        workers.slice(gpus=1).shout.call_one("hello").get()
        (event,) = collect(stream, "log_line")
    assert (event.text, event.rank) == ("hello", 1)
    assert isinstance(event.subject, LogLine)
    assert event.subject.stream == "stdout"


def test_a_cancelled_call_is_recorded() -> None:
    worker = this_proc().spawn("worker", Worker)
    worker.add.call_one(0).get()
    with EventStream.subscribe(["sent", "cancelled"]) as stream:
        assert worker.wait.call_one().cancel()
        sent, cancelled = stream.poll()
    assert (sent.kind, cancelled.kind) == ("sent", "cancelled")
    assert (sent.call, sent.actor, sent.rank) == (cancelled.call, cancelled.actor, cancelled.rank)
    worker.stop().get()


def test_a_refused_message_is_recorded(procs: ProcMesh) -> None:
    port, receiver = Channel[int].open()
    receiver.close()
    with EventStream.subscribe(["refused"]) as stream:
        port.send(1)
        (event,) = wait_for(stream, "refused")
    assert event.code > 0


def test_connections_and_peer_deaths_are_recorded(local_procs: LocalProcs) -> None:
    with EventStream.subscribe(["link_up", "link_down", "peer_died"]) as stream:
        procs = local_procs()
        waiting = procs.spawn("worker", Worker).wait.call_one()
        kill_proc(procs)
        with pytest.raises(ProcDied):
            waiting.get(timeout=10)
        found = wait_for(stream, "peer_died")
    assert {event.kind for event in found} == {"link_up", "link_down", "peer_died"}
    assert found[0].kind == "link_up"
    assert len({event.peer for event in found}) == 1


def test_subscribers_outlive_the_job(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        from mesh_core.spi import EventStream
        stream = EventStream.subscribe()
        for _ in range(2):
            mesh = this_host().spawn_procs({"n": 1}, name="team").spawn("worker", Worker)
            mesh.add.call_one().get()
            shutdown_context().get()
        found = stream.poll(100_000)
        kinds = [event.kind for event in found]
        print([event.text for event in found if event.kind == "spawned"])
        print(kinds.count("proc_started"), kinds.count("completed") > 1, kinds.count("peer_died"))
        jobs = kinds.index("spawned", kinds.index("peer_died"))
        print("completed" in kinds[:jobs], "completed" in kinds[jobs:])
        times = [event.time_ns for event in found]
        print(times == sorted(times), max(times) - min(times) < 30e9)
        """,
    )
    assert ended.out.splitlines() == [
        "['team', 'worker', 'team', 'worker']",
        "2 True 2",
        "True True",
        "True True",
    ], ended


def test_threads_record_concurrently_without_losing_events() -> None:
    def work() -> None:
        for _ in range(200):
            with span("work"):
                pass

    with EventStream.subscribe(["span_begin", "span_end"]) as stream:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        found: list[Event] = []
        while any(thread.is_alive() for thread in threads):
            found += stream.poll()
        found += stream.poll(max=10_000)
    assert len(found) == 1600
    assert stream.dropped == 0
    assert [event.time_ns for event in found] == sorted(event.time_ns for event in found)


def test_kinds_are_documented() -> None:
    from pathlib import Path

    here = Path(__file__).resolve()
    text = (here.parents[3] / "docs" / "protocol" / "events.md").read_text(encoding="utf-8")
    assert [kind for kind in sorted(Event.KINDS) if f"`{kind}`" not in text] == []


def test_the_spawn_callback_is_called_for_every_process_mesh(local_procs: LocalProcs) -> None:
    heard: list[ProcMesh] = []
    unregister = register_proc_mesh_spawn_callback(heard.append)
    mesh = local_procs(name="first")
    unregister()
    unregister()
    local_procs(name="second")
    assert heard == [mesh]


def test_an_interruption_does_not_distort_the_clock_comparison() -> None:
    # The time that passes before each reading; only the third comparison is undisturbed.
    steps = iter([9_000, 100, 100, 100, 7_000, 100, 100, 100, 100, *[5_000] * 6])
    now = 0

    def clock() -> int:
        nonlocal now
        now += next(steps)
        return now

    assert clock_difference_ns(lambda: clock() + 500, clock) == 500
