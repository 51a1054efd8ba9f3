"""Actors that are recorded; they do not import Arrow."""

from __future__ import annotations

import os

from mesh_core import Actor, Channel, Port, endpoint, get_meter, span, this_host
from mesh_core.testing import wait_until

LIMIT_S = 60.0


class Worker(Actor):
    """Produces some events of every table."""

    @endpoint
    def add(self, number: int) -> int:
        return number + 1

    @endpoint
    def ask(self, other: Worker, number: int) -> int:
        with span("ask"):
            return other.add.call_one(number).get()

    @endpoint
    def tell(self, port: Port[int], number: int) -> None:
        port.send(number)

    @endpoint
    def work(self, number: int) -> None:
        meter = get_meter()
        with span("outer", {"number": number}), span("inner"):
            meter.create_counter("steps", unit="1").add(2, {"phase": "warm"})
            meter.create_up_down_counter("level").add(-0.5)
            meter.create_histogram("size").record(30)
            meter.create_gauge("loss").set(0.25)

    @endpoint
    def shout(self, text: str) -> None:
        print(text, flush=True)

    @endpoint
    def fail(self) -> None:
        raise ValueError("it is broken")

    @endpoint
    def flood(self, count: int) -> int:
        port, receiver = Channel[int].open()
        for number in range(count):
            port.send(number)
            receiver.recv().get()
        return count

    @endpoint
    def fork(self) -> int:
        child = os.fork()
        if child == 0:
            os._exit(0)
        return os.waitpid(child, 0)[1]

    @endpoint
    def spawn(self, name: str) -> int:
        self.procs = this_host().spawn_procs(name=name)
        return self.procs.spawn("grandchild", Worker).add.call_one(1).get()

    @endpoint
    def has_module(self, name: str) -> bool:
        import sys

        return name in sys.modules


class Waiter(Actor):
    """Waits for another actor until that is released."""

    @endpoint
    def wait(self, blocker: Blocker) -> int:
        return blocker.wait_for_file.call_one().get()


class Blocker(Actor):
    """Replies when a file exists."""

    @endpoint
    def wait_for_file(self, path: str = "") -> int:
        wait_until(lambda: os.path.exists(self.path), LIMIT_S)
        return 1

    @endpoint
    def set_path(self, path: str) -> None:
        self.path = path
