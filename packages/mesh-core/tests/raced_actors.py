"""A program whose actors race, but not this time: it lets them continue one after another.

`python raced_actors.py FOLDER` saves one case for each race in FOLDER.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from mesh_core import (
    Actor,
    concurrent_endpoint,
    configure,
    current_rank,
    endpoint,
    this_host,
)
from mesh_core.recording import record, save_case

COUNT = 3


def is_open(gates: str) -> bool:
    """Return whether the gate of this rank is open; a replay finds all gates open."""
    return Path(gates, str(current_rank().rank)).exists()


def pass_gate(gates: str) -> None:
    """Wait until the program opens the gate of this rank."""
    while not is_open(gates):
        time.sleep(0.005)


class Account(Actor):
    """A value that others read and write."""

    def __init__(self) -> None:
        self.balance = 0

    @endpoint
    def read(self) -> int:
        return self.balance

    @endpoint
    def write(self, balance: int) -> None:
        self.balance = balance

    @endpoint
    def add(self, amount: int) -> None:
        self.balance += amount


class Teller(Actor):
    """Loses a deposit if another teller writes between its read and its write."""

    def __init__(self, account: Any) -> None:
        self.account = account

    @endpoint
    def deposit(self, amount: int, gates: str) -> None:
        pass_gate(gates)
        balance = self.account.read.call_one().get(timeout=100)
        self.account.write.call_one(balance + amount).get()


class LoopTeller(Actor):
    """Like `Teller` on an event loop, with a computation between its read and its write."""

    def __init__(self, account: Any, seconds: float = 0.001) -> None:
        self.account = account
        self.seconds = seconds

    @concurrent_endpoint
    async def deposit(self, amount: int, gates: str) -> None:
        if not is_open(gates):
            await asyncio.to_thread(pass_gate, gates)
        balance = await self.account.read.call_one()
        seconds = self.seconds
        await asyncio.sleep(seconds)
        await self.account.write.call_one(balance + amount)


class SafeTeller(Actor):
    """Loses no deposit."""

    def __init__(self, account: Any) -> None:
        self.account = account

    @endpoint
    def deposit(self, amount: int, gates: str) -> None:
        pass_gate(gates)
        self.account.add.call_one(amount).get()


class Auditor(Actor):
    """Fails if a deposit was lost."""

    def __init__(self, account: Any) -> None:
        self.account = account

    @endpoint
    def check(self, expected: int) -> None:
        balance = self.account.read.call_one().get()
        if balance != expected:
            raise ValueError(f"the balance is {balance} instead of {expected}")


class TwinAuditor(Actor):
    """Fails if it confuses two accounts with the same name."""

    def __init__(self, first: Any, second: Any) -> None:
        self.accounts = [first, second]

    @endpoint
    def check_both(self) -> None:
        balances = [account.read.call_one().get() for account in self.accounts]
        if balances != [0, 5]:
            raise ValueError(f"the balances are {balances}")


class Sender(Actor):
    """Sends its parts to a reducer."""

    @endpoint
    def send(self, reducer: Any, gates: str) -> None:
        pass_gate(gates)
        for part in range(2):
            reducer.add.call_one(current_rank().rank, part).get()


class Reducer(Actor):
    """Depends on the order of its senders."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []

    @endpoint
    def add(self, rank: int, part: int) -> None:
        self.parts.append((rank, part))
        if self.parts == [(2, 0), (1, 0)]:
            raise LookupError("2 came before 1 and both before 0")


class Peer(Actor):
    """Two of them wait for each other if both have begun."""

    @endpoint
    def get(self) -> int:
        return 1

    @endpoint
    def ask(self, other: Any) -> int:
        found: int = other.get.call_one().get()
        return found


class Listener(Actor):
    """Calls an actor that is not recorded."""

    def __init__(self, other: Any) -> None:
        self.other = other
        self.seen: list[int] = []

    @endpoint
    def hear(self, number: int) -> None:
        self.seen.append(self.other.square.call_one(number).get())


class Squarer(Actor):
    """Is not recorded."""

    @endpoint
    def square(self, number: int) -> int:
        return number * number


def one_after_another(folder: Path, endpoint: Any, *args: Any) -> None:
    """Call all actors concurrently, and let each continue after the previous one has returned."""
    gates = folder / endpoint._mesh._name
    gates.mkdir(parents=True)
    replies = endpoint.stream(*args, str(gates))
    for rank in range(len(endpoint._mesh)):
        (gates / str(rank)).touch()
        next(replies).get()


def bank(folder: Path, name: str, teller: type[Actor]) -> None:
    """Save the case of an account with several tellers."""
    account = this_host().spawn_procs().spawn(f"{name}_account", Account)
    procs = this_host().spawn_procs({"n": COUNT})
    tellers: Any = procs.spawn(f"{name}_tellers", teller, account)
    auditor = this_host().spawn_procs().spawn(f"{name}_auditor", Auditor, account)
    one_after_another(folder, tellers.deposit, 1)
    auditor.check.call_one(COUNT).get()
    save_case(auditor)


def main(folder: Path) -> None:
    """Save all cases."""
    configure(record_dir=folder / "cases")
    record("[!h]*")
    bank(folder, "bank", Teller)
    bank(folder, "loop", LoopTeller)
    bank(folder, "safe", SafeTeller)
    reducer = this_host().spawn_procs().spawn("reducer", Reducer)
    senders: Any = this_host().spawn_procs({"n": COUNT}).spawn("senders", Sender)
    one_after_another(folder, senders.send, reducer)
    save_case(reducer)
    twins = [this_host().spawn_procs().spawn("twin", Account) for _ in range(2)]
    twin_auditor = this_host().spawn_procs().spawn("twins_auditor", TwinAuditor, *twins)
    twins[1].write.call_one(5).get()
    twin_auditor.check_both.call_one().get()
    save_case(twin_auditor)
    peers: Any = this_host().spawn_procs({"n": 2}).spawn("peers", Peer)
    for rank in range(2):
        peers.slice(n=rank).ask.call_one(peers.slice(n=1 - rank)).get()
    save_case(peers.slice(n=0))
    squarer = this_host().spawn_procs().spawn("hidden", Squarer)
    listener = this_host().spawn_procs().spawn("listener", Listener, squarer)
    for number in range(2):
        listener.hear.call_one(number).get()
    save_case(listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
