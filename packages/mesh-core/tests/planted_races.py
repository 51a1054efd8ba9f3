"""Six programs with a race, each beside the version without it, for tests of the simulator.

`run_x(is_fixed)`, to be run in `simulated(...)`, asserts what a program without the race
guarantees.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from mesh_core import Actor, ProcDied, SupervisionError, concurrent_endpoint, endpoint, this_host
from mesh_core.testing import kill_proc


class Counter(Actor):
    """Reads and writes with a wait between the two."""

    def __init__(self, is_fixed: bool) -> None:
        self.count = 0
        self.lock = asyncio.Lock()
        self.is_fixed = is_fixed

    @concurrent_endpoint
    async def add(self) -> None:
        if self.is_fixed:
            async with self.lock:
                await self._add()
        else:
            await self._add()

    async def _add(self) -> None:
        count = self.count
        await asyncio.sleep(0.0001)
        self.count = count + 1

    @endpoint
    async def value(self) -> int:
        return self.count


class Caller(Actor):
    @endpoint
    def call(self, counter: Any) -> None:
        counter.add.call_one().get()


def run_lost_update(is_fixed: bool) -> None:
    counter = this_host().spawn_procs().spawn("counter", Counter, is_fixed)
    callers = this_host().spawn_procs({"callers": 2}).spawn("callers", Caller)
    callers.call.call(counter).get()
    assert counter.value.call_one().get() == 2


class Tickets(Actor):
    """Checks and takes a ticket in two calls, or in one."""

    def __init__(self) -> None:
        self.left = 1
        self.sold = 0

    @endpoint
    def has_left(self) -> bool:
        return self.left > 0

    @endpoint
    def sell(self) -> None:
        self.left -= 1
        self.sold += 1

    @endpoint
    def sell_if_left(self) -> None:
        if self.left > 0:
            self.left -= 1
            self.sold += 1

    @endpoint
    def count(self) -> int:
        return self.sold


class Buyer(Actor):
    @endpoint
    def buy(self, tickets: Any, is_fixed: bool) -> None:
        if is_fixed:
            tickets.sell_if_left.call_one().get()
        elif tickets.has_left.call_one().get():
            tickets.sell.call_one().get()


def run_check_then_act(is_fixed: bool) -> None:
    tickets = this_host().spawn_procs().spawn("tickets", Tickets)
    buyers = this_host().spawn_procs({"buyers": 2}).spawn("buyers", Buyer)
    buyers.buy.call(tickets, is_fixed).get()
    assert tickets.count.call_one().get() == 1


class Account(Actor):
    """Applies each request that it gets, or each one once."""

    def __init__(self, is_fixed: bool) -> None:
        self.balance = 0
        self.seen: set[int] = set()
        self.is_fixed = is_fixed

    @endpoint
    def deposit(self, number: int, amount: int) -> None:
        if self.is_fixed and number in self.seen:
            return
        self.seen.add(number)
        self.balance += amount

    @endpoint
    def read(self) -> int:
        return self.balance


class Teller(Actor):
    @endpoint
    def deposit(self, account: Any, number: int) -> None:
        account.deposit.call_one(number, 10).get()


def run_repeated_request(is_fixed: bool) -> None:
    account = this_host().spawn_procs().spawn("account", Account, is_fixed)
    procs = this_host().spawn_procs()
    teller = procs.spawn("teller", Teller, restart="permanent")
    teller.initialized.get()
    call = teller.deposit.call_one(account, 1)
    time.sleep(random.random() * 0.01)
    kill_proc(procs)
    while True:
        try:
            call.get()
            break
        except ProcDied:
            # The deposit may have arrived before the process died.
            time.sleep(0.01)
            call = teller.deposit.call_one(account, 1)
    assert account.read.call_one().get() == 10


class Store(Actor):
    """Gets the announcement of a value, and the value, from different senders."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.read: list[int | None] = []

    @endpoint
    def put(self, name: str, value: int) -> None:
        self.values[name] = value

    @endpoint
    def announced(self, name: str) -> None:
        self.read.append(self.values.get(name))

    @endpoint
    def reads(self) -> list[int | None]:
        return self.read


class Producer(Actor):
    @endpoint
    def produce(self, store: Any, announcer: Any, is_fixed: bool) -> None:
        if is_fixed:
            store.put.call_one("x", 1).get()
        else:
            store.put.broadcast("x", 1)
        announcer.announce.call_one(store).get()


class Announcer(Actor):
    @endpoint
    def announce(self, store: Any) -> None:
        store.announced.broadcast("x")


def run_order_of_senders(is_fixed: bool) -> None:
    store = this_host().spawn_procs().spawn("store", Store)
    producer = this_host().spawn_procs().spawn("producer", Producer)
    announcer = this_host().spawn_procs().spawn("announcer", Announcer)
    producer.produce.call_one(store, announcer, is_fixed).get()
    while not (reads := store.reads.call_one().get()):
        time.sleep(0.001)
    assert reads == [1]


class Shard(Actor):
    """One half of a table, with the number of its last update."""

    def __init__(self) -> None:
        self.version = 0

    @endpoint
    def write(self, version: int) -> None:
        self.version = version

    @endpoint
    def read(self) -> int:
        return self.version


class Reader(Actor):
    @endpoint
    def read(self, shards: Any, is_fixed: bool) -> list[int]:
        while True:
            versions = list(shards.read.call().get().values())
            if not is_fixed or len(set(versions)) == 1:
                return versions


class Writer(Actor):
    @endpoint
    def write(self, shards: Any, version: int) -> None:
        shards.write.call(version).get()


def run_torn_read(is_fixed: bool) -> None:
    shards = this_host().spawn_procs({"shards": 2}).spawn("shards", Shard)
    reader = this_host().spawn_procs().spawn("reader", Reader)
    writer = this_host().spawn_procs().spawn("writer", Writer)
    writing = writer.write.call_one(shards, 1)
    versions = reader.read.call_one(shards, is_fixed).get()
    writing.get()
    assert len(set(versions)) == 1


class Leader(Actor):
    """Leads until it is requested to stop."""

    def __init__(self) -> None:
        self.is_leading = True

    @endpoint
    def ping(self) -> bool:
        return self.is_leading

    @endpoint
    def step_down(self) -> None:
        self.is_leading = False


def run_two_leaders(is_fixed: bool) -> None:
    first = this_host().spawn_procs().spawn("first", Leader)
    first.ping.call_one().get()
    leaders = [first]
    for _ in range(20):
        try:
            leaders[-1].ping.call_one().get(timeout=0.5)
        except TimeoutError:
            # It may only be slow.
            if is_fixed:
                leaders[-1].step_down.call_one().get()
            leaders.append(this_host().spawn_procs().spawn("next", Leader))
        except SupervisionError:
            leaders.append(this_host().spawn_procs().spawn("next", Leader))
        time.sleep(0.1)
    leading = 0
    for leader in leaders:
        try:
            leading += leader.ping.call_one().get()
        except SupervisionError:
            continue
    assert leading <= 1


RACES = [
    run_lost_update,
    run_check_then_act,
    run_repeated_request,
    run_order_of_senders,
    run_torn_read,
    run_two_leaders,
]
