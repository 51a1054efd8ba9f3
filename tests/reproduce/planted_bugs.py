"""Programs with one planted bug each, on two hosts, whose actors are recorded.

`python planted_bugs.py BUG FOLDER KEYS ADDRESS ADDRESS` runs one of them; its cases are in FOLDER.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import mesh_core
from mesh_core import (
    Actor,
    Credentials,
    HostMesh,
    MeshError,
    MeshFailure,
    SupervisionError,
    attach_to_workers,
    concurrent_endpoint,
    configure,
    current_rank,
    endpoint,
)
from mesh_core.recording import record


class Layer(Actor):
    """A wrong shape on one rank."""

    def __init__(self) -> None:
        # The last rank gets a shorter part.
        self.weights = [1.0] * (4 - current_rank().rank)

    @endpoint
    def forward(self, inputs: list[float]) -> float:
        return sum(w * x for w, x in zip(self.weights, inputs, strict=True))


class Account(Actor):
    """A value that other actors read and write."""

    def __init__(self) -> None:
        self.balance = 0

    @endpoint
    async def read(self) -> int:
        return self.balance

    @endpoint
    async def write(self, balance: int) -> None:
        self.balance = balance


class Teller(Actor):
    """A race of two callers."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.read_count = 0
        self.both = asyncio.Event()

    @concurrent_endpoint
    async def deposit(self, amount: int) -> None:
        balance = await self.account.read.call_one()
        # Both have read before the first one writes.
        self.read_count += 1
        if self.read_count == 2:
            self.both.set()
        await self.both.wait()
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.02 * amount)
        await self.account.write.call_one(balance + amount)

    @endpoint
    async def check(self) -> None:
        balance = await self.account.read.call_one()
        if balance != 3:
            raise ValueError(f"the balance is {balance}")


class Counter(Actor):
    """A failure after a restart, which loses the state."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    @endpoint
    def begin(self, name: str) -> None:
        self.seen[name] = 0

    @endpoint
    def crash(self) -> None:
        raise RuntimeError("crashed")

    @endpoint
    def count(self, name: str) -> int:
        self.seen[name] += 1
        return self.seen[name]


class Reducer(Actor):
    """Depends on the order of messages of two senders."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    @endpoint
    def add(self, name: str) -> None:
        self.parts.append(name)
        if self.parts == ["slow"]:
            raise LookupError("'slow' came before 'fast'")


class Sender(Actor):
    """Sends to a reducer."""

    @endpoint
    def send(self, reducer: Reducer, name: str) -> None:
        reducer.add.call_one(name).get()


class Window(Actor):
    """An index that is out of range after 10,000 messages."""

    def __init__(self) -> None:
        self.values = [0] * 100
        self.at = 0

    @endpoint
    def push(self, value: int) -> None:
        # Wraps one message too late, every hundred times.
        self.at = (self.at + 1) % 100 if value % 10_000 else 100
        self.values[self.at] = value


class Reader(Actor):
    """An exception in a callback, so that its result never arrives."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.latest: int | None = None

    @endpoint
    def start(self) -> None:
        future = self.account.read.call_one()
        future.get()
        try:
            future.add_done_callback(self.store)
        except ZeroDivisionError:
            print("the callback failed")

    def store(self, future: Any) -> None:
        self.latest = 10 // future.get()

    @endpoint
    def read(self) -> int:
        return self.latest + 1  # type: ignore[operator]


class Left(Actor):
    """A deadlock of two actors."""

    @endpoint
    def meet(self, other: Right, me: Left) -> None:
        other.answer.call_one(me).get()

    @endpoint
    def reply(self) -> None:
        return None


class Right(Actor):
    """The second actor of the deadlock."""

    @endpoint
    def answer(self, other: Left) -> None:
        other.reply.call_one().get()


class Chooser(Actor):
    """Depends on the order of a set."""

    @endpoint
    def choose(self, names: list[str]) -> str:
        chosen = next(iter(set(names)))
        raise KeyError(chosen)


class Trainer(Actor):
    """Continues with wrong weights after it has lost a host."""

    def __init__(self, weights: Account) -> None:
        self.weights = weights
        self.last = 0

    @endpoint
    def step(self) -> int:
        try:
            self.last = self.weights.read.call_one().get()
        except MeshError:
            self.last = 0
        if self.last == 0:
            raise FloatingPointError("the loss is nan")
        return self.last


class Saboteur(Actor):
    """Ends its host without notice."""

    @endpoint
    def kill_host(self) -> None:
        os.kill(-1, signal.SIGKILL)


class Setter(Actor):
    """Changes global state of its process."""

    @endpoint
    def set(self, name: str, size: int) -> None:
        os.environ[name] = str(size)


class User(Actor):
    """Depends on global state that another actor has changed."""

    @endpoint
    def use(self, name: str) -> int:
        return 100 // int(os.environ.get(name, "1"))


def bad_shape(hosts: HostMesh) -> None:
    """Let one of two ranks have a wrong shape."""
    layers = hosts.spawn_procs().spawn("layers", Layer)
    layers.forward.call([1.0] * 4).get()


def race_of_two_callers(hosts: HostMesh) -> None:
    """Let two callers read before either writes."""
    procs = hosts.spawn_procs()
    account = procs.slice(hosts=0).spawn("account", Account)
    teller = procs.slice(hosts=1).spawn("teller", Teller, account)
    for one in [teller.deposit.call_one(1), teller.deposit.call_one(2)]:
        one.get()
    teller.check.call_one().get()


def failure_after_restart(hosts: HostMesh) -> None:
    """Use state that a restart has lost."""
    counter = hosts.slice(hosts=1).spawn_procs().spawn("counter", Counter, restart="permanent")
    counter.begin.call_one("a").get()
    counter.count.call_one("a").get()
    counter.crash.broadcast()
    while True:
        try:
            counter.count.call_one("a").get()
        except SupervisionError:
            time.sleep(0.05)


def message_order(hosts: HostMesh) -> None:
    """Let the slower sender be first."""
    procs = hosts.spawn_procs()
    reducer = procs.slice(hosts=0).spawn("reducer", Reducer)
    senders = procs.spawn("senders", Sender)
    senders.slice(hosts=1).send.call_one(reducer, "slow").get()
    senders.slice(hosts=0).send.call_one(reducer, "fast").get()


def index_out_of_range(hosts: HostMesh) -> None:
    """Send many messages."""
    window = hosts.slice(hosts=1).spawn_procs().spawn("window", Window)
    sent = [window.push.call_one(value) for value in range(1, 10_001)]
    for one in sent:
        one.get()


def exception_in_callback(hosts: HostMesh) -> None:
    """Let a callback fail."""
    procs = hosts.spawn_procs()
    account = procs.slice(hosts=0).spawn("account", Account)
    reader = procs.slice(hosts=1).spawn("reader", Reader, account)
    reader.start.call_one().get()
    reader.read.call_one().get()


def deadlock(hosts: HostMesh) -> None:
    """Let two actors wait for each other."""
    procs = hosts.spawn_procs()
    left = procs.slice(hosts=0).spawn("left", Left)
    right = procs.slice(hosts=1).spawn("right", Right)
    left.meet.call_one(right, left).get()


def set_order(hosts: HostMesh) -> None:
    """Iterate over a set of texts."""
    chooser = hosts.slice(hosts=0).spawn_procs().spawn("chooser", Chooser)
    chooser.choose.call_one([f"name-{number}" for number in range(1000)]).get()


def wrong_weights(hosts: HostMesh) -> None:
    """Lose the host that has the weights."""
    procs = hosts.spawn_procs()
    weights = procs.slice(hosts=1).spawn("weights", Account)
    weights.write.call_one(7).get()
    trainer = procs.slice(hosts=0).spawn("trainer", Trainer, weights)
    trainer.step.call_one().get()
    procs.slice(hosts=1).spawn("saboteur", Saboteur).kill_host.broadcast()
    while True:
        trainer.step.call_one().get()


def hidden_global_state(hosts: HostMesh) -> None:
    """Let one actor change state that another one depends on."""
    procs = hosts.slice(hosts=1).spawn_procs()
    user = procs.spawn("user", User)
    user.use.call_one("PLANTED_SIZE").get()
    procs.spawn("setter", Setter).set.call_one("PLANTED_SIZE", 0).get()
    user.use.call_one("PLANTED_SIZE").get()


BUGS = {
    one.__name__: one
    for one in (
        bad_shape, race_of_two_callers, failure_after_restart, message_order, index_out_of_range,
        exception_in_callback, deadlock, set_order, wrong_weights, hidden_global_state,
    )
}  # fmt: skip


def ignore(failure: MeshFailure) -> None:
    """Handle failures that no caller waits for: the program continues."""
    print("not handled:", failure.report().splitlines()[0], flush=True)


def main(bug: str, folder: str, keys: str, *addresses: str) -> None:
    """Run a program until its bug occurs."""
    configure(heartbeat_s=0.3, unresponsive_timeout_s=1.0)
    mesh_core.unhandled_fault_hook = ignore
    record(folder=folder)
    hosts = attach_to_workers(list(addresses), credentials=Credentials.load(keys))
    try:
        BUGS[bug](hosts)
    except Exception as error:
        print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
