"""Programs that train with `torch.distributed` on two hosts until one rank hangs.

`python planted_hangs.py HANG SEED KEYS ADDRESS ADDRESS` runs one of them. It prints when the
culprit hangs, and each hang that telemetry reports, as JSON.
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import mesh_core
from mesh_core import (
    Actor,
    Credentials,
    MeshFailure,
    attach_to_workers,
    configure,
    endpoint,
    shutdown_context,
)
from mesh_jobs import setup_torch_distributed
from mesh_telemetry import Hang, Telemetry

RANKS_PER_HOST = 2
STEPS = 400
#: Without a planted hang, until the test injects a fault.
FAULT_STEPS = 4000
#: From the first step until a hang is reported, while other programs use the processors.
LIMIT_S = 60.0


def say_when() -> None:
    """Print the time at which the culprit hangs."""
    print("HANGS", time.time(), flush=True)


class Samples(Dataset[int]):
    """Samples, one of which never arrives."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, at: int) -> int:
        if at == self.bad:
            say_when()
            threading.Event().wait()  # hang: own_loader
        return at


class Store(Actor):
    """Serves data, but never the last part."""

    @endpoint
    def part(self, number: int) -> int:
        if number < 0:
            say_when()
            threading.Event().wait()  # hang: other_actor
        return number


class Trainer(Actor):
    """One rank."""

    def __init__(self) -> None:
        timeout = datetime.timedelta(seconds=600)
        distributed.init_process_group("gloo", timeout=timeout)
        self.rank = distributed.get_rank()
        world = list(range(distributed.get_world_size()))
        self.other_group: Any = distributed.new_group(world, timeout=timeout)
        self.model = DistributedDataParallel(torch.nn.Linear(16, 1))
        self.total = torch.zeros(1)

    @endpoint
    def ready(self) -> int:
        return os.getpid()

    @endpoint
    def idle(self) -> None:
        """Return at once."""

    def step(self) -> None:
        """Train one step of about 10 ms."""
        until = time.monotonic() + 0.008
        while time.monotonic() < until:
            self.model.module.weight.grad = None
        self.model(torch.randn(4, 16)).sum().backward()
        self.total += 1
        distributed.all_reduce(self.total)

    @endpoint
    def train(self, hang: str, culprit: int, at: int, others: Any, store: Any) -> None:
        """Train until the culprit hangs at a step; to the end if no hang is given."""
        loader = None
        if hang in ("own_loader", "loader_workers") and self.rank == culprit:
            workers = 1 if hang == "loader_workers" else 0
            loader = iter(DataLoader(Samples(at), batch_size=None, num_workers=workers))
        for number in range(STEPS if hang else FAULT_STEPS):
            if number == at and self.rank == 0:
                print("TRAINS", flush=True)
            if loader is not None:
                next(loader)  # hang: loader_workers
            if self.rank == culprit and number == at:
                self.hang(hang, others, store)
                if hang == "returns":
                    return
            self.step()

    def hang(self, hang: str, others: Any, store: Any) -> None:
        """Keep the other ranks waiting, unless the data or the test does so."""
        if hang in ("", "own_loader", "loader_workers"):
            return
        say_when()
        if hang == "order":
            distributed.broadcast(self.total, 0)  # hang: order
        if hang == "two_groups":
            distributed.all_reduce(self.total, group=self.other_group)  # hang: two_groups
        if hang == "shape":
            distributed.all_reduce(torch.zeros(7))  # hang: shape
        if hang == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)  # hang: stopped
        if hang == "lock":
            threading.Lock().acquire()
            event = threading.Event()
            event.wait()  # hang: lock
        if hang == "pipe":
            os.read(os.pipe()[0], 1)  # hang: pipe
        if hang == "deadlock":
            others.slice(rank=(self.rank + 1) % 4).idle.call_one().get()  # hang: deadlock
        if hang == "other_actor":
            store.part.call_one(-1).get()


class Reports(logging.Handler):
    """Prints the hangs that telemetry reports.

    Attributes:
        has_one: Set after the first report.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_one = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        for hang in record.args or ():
            if isinstance(hang, Hang):
                culprits = [vars(culprit) for culprit in hang.culprits]
                about = {"at": time.time(), "kind": hang.kind, "text": str(hang)}
                print("REPORT", json.dumps({**about, "culprits": culprits}), flush=True)
                self.has_one.set()


def ignore(failure: MeshFailure) -> None:
    """Handle failures that no caller waits for: the program continues."""
    print("not handled:", failure.report().splitlines()[0], flush=True)


def plan(seed: int) -> tuple[int, int]:
    """Return the culprit and the step at which it hangs."""
    choice = random.Random(seed)
    return choice.randrange(4), choice.randrange(40, 120)


def main(hang: str, seed: str, keys: str, *addresses: str) -> None:
    """Run a program until its hang is reported."""
    configure(heartbeat_s=1.0, unresponsive_timeout_s=30.0, stop_grace_s=0.1)
    configure(log_prefix=False)
    mesh_core.unhandled_fault_hook = ignore
    reports = Reports()
    logging.getLogger("mesh_telemetry").addHandler(reports)
    culprit, at = plan(int(seed))
    with Telemetry():
        hosts = attach_to_workers(list(addresses), credentials=Credentials.load(keys))
        procs = hosts.spawn_procs({"procs": RANKS_PER_HOST}, name="train").flatten("rank")
        store = hosts.slice(hosts=0).spawn_procs(name="store").spawn("store", Store)
        setup_torch_distributed(procs)
        trainers = procs.spawn("trainers", Trainer)
        trainers.ready.call().get()
        trainers.train.broadcast(hang, culprit, at, trainers, store)
        if not reports.has_one.wait(LIMIT_S):
            print("NOTHING was reported; the threads of the program:", flush=True)
            faulthandler.dump_traceback(sys.stdout)
        shutdown_context().get()


if __name__ == "__main__":
    main(*sys.argv[1:])
