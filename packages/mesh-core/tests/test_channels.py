"""Channels: ports can be sent in messages, and receivers stay."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Actor,
    Channel,
    ChannelClosed,
    NoReply,
    Port,
    PortReceiver,
    ProcDied,
    Unpicklable,
    current_rank,
    endpoint,
    this_host,
)

if TYPE_CHECKING:
    from mesh_core import ProcMesh


class Sender(Actor):
    """Sends to the ports that it receives, and stores ports."""

    def __init__(self) -> None:
        self.kept: Port[Any] | None = None

    @endpoint
    def send(self, port: Port[Any], *values: Any) -> None:
        for value in values:
            port.send(value)

    @endpoint
    def send_rank(self, port: Port[Any]) -> None:
        port.send(current_rank().rank)

    @endpoint
    def fail(self, port: Port[Any], error: BaseException) -> None:
        port.exception(error)

    @endpoint
    def keep(self, port: Port[Any] | None) -> None:
        self.kept = port

    @endpoint
    def has_kept(self) -> bool:
        return self.kept is not None

    @endpoint
    def hand_on(self, to: Sender, port: Port[Any]) -> None:
        to.send.call_one(port, "handed on").get()

    @endpoint
    def from_thread(self, port: Port[Any]) -> None:
        threading.Thread(target=port.send, args=("from a thread",)).start()

    @endpoint
    async def from_task(self, port: Port[Any]) -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            port.send("from a task")

        self.task = asyncio.create_task(later())

    @endpoint
    def own_channel(self) -> Port[Any]:
        port, self.receiver = Channel[Any].open()
        return port

    @endpoint
    def receive(self, count: int) -> list[Any]:
        return [self.receiver.recv().get() for _ in range(count)]

    @endpoint
    async def receive_async(self, count: int) -> list[Any]:
        return [await self.receiver.recv() for _ in range(count)]

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def senders(procs: ProcMesh) -> Sender:
    return procs.spawn("senders", Sender)


def test_values_arrive_in_the_order_in_which_they_were_sent(senders: Sender) -> None:
    port, receiver = Channel[Any].open()
    senders.slice(gpus=0).send.broadcast(port, *range(500))
    assert [receiver.recv().get() for _ in range(500)] == list(range(500))


def test_a_channel_works_within_one_process(senders: Sender) -> None:
    port, receiver = Channel[Any].open()
    waiting = receiver.recv()
    assert not waiting.done()
    port.send({"a": 1})
    assert waiting.get() == {"a": 1}


def test_a_ranked_channel_includes_the_rank_of_the_sender(senders: Sender) -> None:
    port, receiver = Channel[Any].open_ranked()
    senders.send_rank.call(port).get()
    assert sorted(receiver.recv().get() for _ in range(4)) == [(i, i) for i in range(4)]
    port, plain = Channel[Any].open()
    ranked = plain.ranked()
    del plain
    gc.collect()
    senders.slice(gpus=2).send_rank.call_one(port).get()
    assert ranked.recv().get() == (0, 0)


def test_recv_raises_sent_exceptions_with_their_type(senders: Sender) -> None:
    port, receiver = Channel[Any].open()
    senders.slice(gpus=0).fail.call_one(port, KeyError("missing")).get()
    port.send("after")
    with pytest.raises(KeyError, match="missing"):
        receiver.recv().get()
    assert receiver.recv().get() == "after"


@pytest.mark.parametrize("is_ranked", [False, True])
def test_a_once_channel_accepts_exactly_one_value(senders: Sender, is_ranked: bool) -> None:
    port, receiver = (Channel[Any].open_ranked if is_ranked else Channel[Any].open)(once=True)
    future = receiver.recv()
    with pytest.raises(ValueError, match="one value"):
        receiver.recv()
    port.send(1)
    with pytest.raises(RuntimeError, match="one value"):
        port.send(2)
    assert future.get() == ((0, 1) if is_ranked else 1)


def test_an_unpicklable_value_is_refused_and_the_port_stays_usable(senders: Sender) -> None:
    port, receiver = Channel[Any].open(once=True)
    with pytest.raises(Unpicklable):
        port.send(threading.Lock())
    port.send("fine")
    assert receiver.recv().get() == "fine"


def test_ports_can_be_passed_to_other_actors_threads_and_tasks(senders: Sender) -> None:
    port, receiver = Channel[Any].open()
    first, second = senders.slice(gpus=0), senders.slice(gpus=1)
    first.hand_on.call_one(second, port).get()
    assert receiver.recv().get() == "handed on"
    first.from_thread.call_one(port).get()
    assert receiver.recv().get() == "from a thread"
    first.from_task.call_one(port).get()
    assert receiver.recv().get() == "from a task"
    assert receiver.recv is not None


def test_a_port_can_be_pickled_but_a_receiver_cannot() -> None:
    port, receiver = Channel[Any].open()
    pickle.loads(pickle.dumps(port)).send(5)
    assert receiver.recv().get() == 5
    with pytest.raises(TypeError):
        pickle.dumps(receiver)


def test_an_actor_opens_a_channel_and_receives(senders: Sender) -> None:
    one = senders.slice(gpus=0)
    port = one.own_channel.call_one().get()
    for value in range(4):
        port.send(value)
    assert one.receive.call_one(2).get() == [0, 1]
    assert one.receive_async.call_one(2).get() == [2, 3]


def test_a_recv_timeout_loses_no_value() -> None:
    port, receiver = Channel[Any].open()
    future = receiver.recv()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
    port.send("late")
    port.send("later")
    assert future.get() == "late"
    assert receiver.recv().get(timeout=5) == "later"


def test_a_cancelled_recv_consumes_no_value() -> None:
    port, receiver = Channel[Any].open()
    cancelled, waiting = receiver.recv(), receiver.recv()
    assert cancelled.cancel()
    port.send(1)
    assert waiting.get() == 1


def test_receivers_can_be_iterated_in_threads_and_event_loops_until_closed() -> None:
    port, receiver = Channel[Any].open()
    for value in range(3):
        port.send(value)
    got = []
    for value in receiver:
        got.append(value)
        if value == 2:
            receiver.close()
    assert got == [0, 1, 2]

    port, receiver = Channel[Any].open()

    async def collect() -> list[Any]:
        for value in range(3):
            port.send(value)
        found = []
        async for value in receiver:
            found.append(value)
            if value == 2:
                receiver.close()
        return found

    assert asyncio.run(collect()) == [0, 1, 2]


def test_closing_wakes_waiting_receivers_and_drops_later_values(senders: Sender) -> None:
    port, receiver = Channel[Any].open()
    waiting = receiver.recv()
    timer = threading.Timer(0.05, receiver.close)
    timer.start()
    with pytest.raises(ChannelClosed):
        waiting.get()
    port.send("dropped")
    senders.slice(gpus=0).send.call_one(port, "dropped").get()
    with pytest.raises(ChannelClosed):
        receiver.recv().get()

    async def closes() -> None:
        _, other = Channel[Any].open()
        pending = asyncio.ensure_future(other.recv().as_asyncio())
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(ChannelClosed):
            await pending

    asyncio.run(closes())


def test_several_threads_may_receive_from_one_channel() -> None:
    port, receiver = Channel[Any].open()
    got: list[Any] = []

    def take() -> None:
        for _ in range(50):
            got.append(receiver.recv().get())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for value in range(200):
        port.send(value)
    for thread in threads:
        thread.join(20)
    assert sorted(got) == list(range(200))


def test_a_thousand_tasks_may_receive_from_one_channel() -> None:
    port, receiver = Channel[Any].open()

    async def main() -> list[Any]:
        waiting = [asyncio.ensure_future(receiver.recv().as_asyncio()) for _ in range(1000)]
        await asyncio.sleep(0)
        for value in range(1000):
            port.send(value)
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == list(range(1000))


def test_a_thread_and_a_task_may_receive_from_one_channel() -> None:
    async def receive_second(port: Port[Any], receiver: PortReceiver[Any]) -> Any:
        second = asyncio.ensure_future(receiver.recv().as_asyncio())
        await asyncio.sleep(0)
        port.send("first")
        port.send("second")
        return await second

    # Repeated, because the thread sometimes sleeps already and sometimes is about to sleep.
    for _ in range(100):
        port, receiver = Channel[Any].open()
        first = receiver.recv()
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(first.get()))  # noqa: B023
        thread.start()
        assert asyncio.run(receive_second(port, receiver)) == "second"
        thread.join(10)
        assert got == ["first"]


def test_the_death_of_a_port_holder_is_raised_after_the_values_it_sent() -> None:
    with this_host().spawn_procs({"n": 2}, name="mortal") as mortal:
        mesh = mortal.spawn("senders", Sender)
        port, receiver = Channel[Any].open()
        victim = mesh.slice(n=1)
        victim.keep.call_one(port).get()
        victim.send.call_one(port, 1, 2).get()
        with pytest.raises(ProcDied):
            victim.die.call_one().get()
        assert [receiver.recv().get(), receiver.recv().get()] == [1, 2]
        with pytest.raises(ProcDied):
            receiver.recv().get(timeout=10)
        # The other actors continue.
        mesh.slice(n=0).send.call_one(port, "alive").get()
        assert receiver.recv().get() == "alive"


def test_a_port_dropped_before_its_holder_died_raises_no_error() -> None:
    with this_host().spawn_procs({"n": 1}, name="mortal") as mortal:
        mesh = mortal.spawn("senders", Sender)
        port, receiver = Channel[Any].open()
        mesh.keep.call_one(port).get()
        mesh.keep.call_one(None).get()
        with pytest.raises(ProcDied):
            mesh.die.call_one().get()
        port.send("only this")
        assert receiver.recv().get() == "only this"
        with pytest.raises(TimeoutError):
            receiver.recv().get(timeout=0.2)


class Forgetful(Sender):
    """Gets a port as an argument of its spawn, and does not keep it."""

    def __init__(self, port: Port[Any]) -> None:
        port.send("created")


def test_a_port_that_an_actor_does_not_keep_is_dropped_after_init() -> None:
    with this_host().spawn_procs({"n": 1}, name="mortal") as mortal:
        port, receiver = Channel[Any].open()
        mesh = mortal.spawn("senders", Forgetful, port)
        mesh.pid.call_one().get()
        with pytest.raises(ProcDied):
            mesh.die.call_one().get()
        assert receiver.recv().get(timeout=10) == "created"
        with pytest.raises(TimeoutError):
            receiver.recv().get(timeout=0.2)


def test_a_dropped_receiver_frees_its_port() -> None:
    from mesh_core._calls.port_holders import holders

    gc.collect()
    before = len(holders)
    for opener in (Channel[Any].open, Channel[Any].open_ranked):
        port, receiver = opener()
        del receiver
        gc.collect()
        port.send("to nobody")
    assert len(holders) == before
    assert isinstance(Channel[Any].open()[1], PortReceiver)


def test_a_fast_sender_is_held_back_by_a_slow_receiver(senders: Sender) -> None:
    from mesh_core import configured

    with configured(mailbox_len_max=10):
        port, receiver = Channel[Any].open()
    started = time.monotonic()
    done = threading.Event()

    def flood() -> None:
        with configured(mailbox_len_max=10):
            for value in range(100):
                port.send(value)
        done.set()

    thread = threading.Thread(target=flood)
    thread.start()
    assert not done.wait(0.2)
    assert [receiver.recv().get() for _ in range(100)] == list(range(100))
    thread.join(10)
    assert done.is_set()
    assert time.monotonic() - started < 30


class Handover(Actor):
    """Forwards the port of its caller."""

    @endpoint(explicit_response_port=True)
    def hand_on(self, port: Port[Any], to: Sender) -> None:
        to.keep.call_one(port).get()

    @endpoint
    def idle(self) -> None: ...

    @endpoint(explicit_response_port=True)
    def hand_on_to_send(self, port: Port[Any], to: Sender) -> None:
        to.send.call_one(port, "from there").get()


def wait_until_kept(sender: Sender) -> None:
    while not sender.has_kept.call_one().get():
        time.sleep(0.001)


def test_an_actor_that_received_the_port_can_reply_to_the_caller(
    procs: ProcMesh, senders: Sender
) -> None:
    handover = procs.slice(gpus=0).spawn("handover", Handover)
    assert handover.hand_on_to_send.call_one(senders.slice(gpus=1)).get() == "from there"
    assert handover.hand_on_to_send.call_one(senders.slice(gpus=0)).get() == "from there"


def test_the_caller_gets_an_error_when_the_holder_drops_its_port(
    procs: ProcMesh, senders: Sender
) -> None:
    handover = procs.slice(gpus=0).spawn("handover", Handover)
    other = senders.slice(gpus=1)
    waiting = handover.hand_on.call_one(other)
    wait_until_kept(other)
    assert not waiting.done()
    other.keep.call_one(None).get()
    with pytest.raises(NoReply):
        waiting.get(timeout=10)


def test_the_caller_gets_an_error_when_the_holder_of_its_port_dies(procs: ProcMesh) -> None:
    handover = procs.slice(gpus=0).spawn("handover", Handover)
    with this_host().spawn_procs({"n": 1}, name="mortal") as mortal:
        victim = mortal.spawn("senders", Sender)
        waiting = handover.hand_on.call_one(victim)
        wait_until_kept(victim)
        # Its endpoint has returned: the port is its only remaining object there.
        handover.idle.call_one().get()
        assert not waiting.done()
        with pytest.raises(ProcDied):
            victim.die.call_one().get()
        with pytest.raises(ProcDied):
            waiting.get(timeout=10)
