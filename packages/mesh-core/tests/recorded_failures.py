"""A program whose actors fail in several ways while they are recorded."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import Any

from mesh_core import (
    Actor,
    Channel,
    MeshError,
    Port,
    concurrent_endpoint,
    context,
    endpoint,
    this_host,
)
from mesh_core.recording import record, save_case


class Store(Actor):
    """Values by name."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    @endpoint
    def put(self, name: str, value: int) -> None:
        self.values[name] = value

    @endpoint
    def get(self, name: str) -> int | None:
        return self.values.get(name)

    @endpoint
    def require(self, name: str) -> int:
        return self.values[name]


class Adder(Actor):
    """Fails when the store has no value."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.total = 0

    @endpoint
    def add(self, name: str) -> int:
        value = self.store.get.call_one(name).get()
        self.total += value  # type: ignore[operator]
        return self.total

    @endpoint
    def add_required(self, names: list[str]) -> int:
        for name in names:
            try:
                self.total += self.store.require.call_one(name).get()
            except KeyError:
                self.total += 1000
        if self.total > 1000:
            raise OverflowError(f"the total is {self.total}")
        return self.total


class Account(Actor):
    """Its callers race: the balance is read and written in two steps."""

    def __init__(self) -> None:
        self.balance = 0

    @endpoint
    async def read(self) -> int:
        return self.balance

    @endpoint
    async def write(self, value: int) -> None:
        self.balance = value


class Teller(Actor):
    """Adds to an account, several callers at a time."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.seen: list[tuple[int, int]] = []
        self.both = asyncio.Event()

    @concurrent_endpoint
    async def deposit(self, amount: int) -> int:
        balance = await self.account.read.call_one()
        self.seen.append((amount, balance))
        # The second caller writes last, and has read before the first one wrote.
        if len(self.seen) == 2:
            self.both.set()
        await self.both.wait()
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.01 * amount)
        await self.account.write.call_one(balance + amount)
        return balance + amount

    @endpoint
    async def check(self, expected: int) -> None:
        balance = await self.account.read.call_one()
        if balance != expected:
            raise ValueError(f"balance {balance} after {self.seen}")


class Gate(Actor):
    """Replies when a file exists."""

    @endpoint
    def passed(self, path: str) -> int:
        while not os.path.exists(path):
            time.sleep(0.005)
        return 7


class Patient(Actor):
    """Loses patience with a gate, opens it itself, and then gets its reply."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    @endpoint
    def wait(self, path: str) -> None:
        waiting = self.gate.passed.call_one(path)
        late = 0
        for _ in range(2):
            try:
                waiting.get(timeout=0.02)
            except TimeoutError:
                late += 1
        open(path, "w").close()
        raise InterruptedError(f"{waiting.get()} after {late} timeouts")


class Mailbox(Actor):
    """Receives values on a channel."""

    @endpoint
    def open(self) -> Port[int]:
        port, self.receiver = Channel[int].open()
        return port

    @endpoint
    def take(self, count: int) -> None:
        values = [self.receiver.recv().get(timeout=60) for _ in range(count)]
        raise BlockingIOError(f"received {values}")


class LoopMailbox(Actor):
    """The same on an event loop, where a value comes while another endpoint waits for it."""

    @endpoint
    async def open(self) -> Port[int]:
        port, self.receiver = Channel[int].open()
        return port

    @concurrent_endpoint
    async def take(self, count: int) -> None:
        values = [await self.receiver.recv() for _ in range(count)]
        raise FileExistsError(f"received {values}")


class Numbers(Actor):
    """Sums the values of a store in the order in which its ranks reply."""

    def __init__(self, stores: Store) -> None:
        self.stores = stores

    @endpoint
    def collect(self) -> None:
        found = [one.get() for one in self.stores.get.stream("rank")]
        raise LookupError(f"the order was {found}")


class Gambler(Actor):
    """Depends on the clock and on random numbers."""

    def __init__(self) -> None:
        self.own = context().random()

    @endpoint
    def play(self) -> None:
        numbers = [random.random(), self.own.random()]
        raise ArithmeticError(f"{numbers} at {context().time()} in {context().getenv('GAMBLE')}")

    @endpoint
    def die(self, at: int) -> int:
        if at == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return at

    @endpoint
    def large(self, data: bytes) -> None:
        raise BufferError(f"{len(data)} bytes, the last is {data[-1]}")


def fail(function: object, *args: object) -> None:
    """Call an endpoint, which fails."""
    fail_of(function.call_one(*args))  # type: ignore[attr-defined]


def fail_of(future: Any) -> None:
    """Wait for a call, which fails."""
    try:
        future.get()
    except Exception as error:
        print(type(error).__name__, flush=True)


def main(folder: str) -> None:
    """Let everything fail once."""
    record(folder=folder)
    procs = this_host().spawn_procs({"n": 2})
    store = procs.slice(n=0).spawn("store", Store)
    adder = procs.slice(n=1).spawn("adder", Adder, store)
    for value in range(3):
        store.put.call_one(f"x{value}", value).get()
    for value in range(3):
        adder.add.call_one(f"x{value}").get()
    fail(adder.add, "x3")
    fail(adder.add_required, ["x1", "x9"])
    gate = procs.slice(n=0).spawn("gate", Gate)
    fail(procs.slice(n=1).spawn("patient", Patient, gate).wait, f"{folder}.gate")
    for number, kind in enumerate((Mailbox, LoopMailbox)):
        mailbox: Any = procs.slice(n=number).spawn(f"mailbox{number}", kind)
        port = mailbox.open.call_one().get()
        port.send(1)
        taking = mailbox.take.call_one(3)
        port.send(2)
        port.send(3)
        fail_of(taking)
    account = procs.slice(n=0).spawn("account", Account)
    teller = procs.slice(n=1).spawn("teller", Teller, account)
    for one in [teller.deposit.call_one(1), teller.deposit.call_one(2)]:
        one.get()
    fail(teller.check, 3)
    stores = procs.spawn("stores", Store)
    for rank in range(2):
        stores.slice(n=rank).put.call_one("rank", rank).get()
    fail(procs.slice(n=0).spawn("numbers", Numbers, stores).collect)
    gambler = procs.slice(n=1).spawn("gambler", Gambler)
    fail(gambler.play)
    fail(gambler.large, bytes(300_000) + b"\7")
    store.get.call_one("x1").get()
    print(save_case(store, "a look at the store"), flush=True)
    dying = this_host().spawn_procs().spawn("dying", Gambler)
    for at in range(4):
        try:
            dying.die.call_one(at).get()
        except MeshError as error:
            print(type(error).__name__, flush=True)


if __name__ == "__main__":
    os.environ["GAMBLE"] = "yes"
    main(sys.argv[1])
