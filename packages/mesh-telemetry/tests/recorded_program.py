"""Actors that are recorded, and the rows that are found of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from mesh_core import Actor, Channel, endpoint, get_meter, span, this_host
from mesh_core.testing import wait_until
from mesh_telemetry import TelemetryConfig
from mesh_telemetry._host_tables import HostTables
from mesh_telemetry._schemas import TABLES

LIMIT_S = 30.0


class Worker(Actor):
    """Does a bit of everything that there is a table for."""

    @endpoint
    def add(self, number: int) -> int:
        return number + 1

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
    """Waits for another actor until that is let go."""

    @endpoint
    def wait(self, gate: Gate) -> int:
        return gate.passed.call_one().get()


class Gate(Actor):
    """Answers when a file is there."""

    @endpoint
    def passed(self, path: str = "") -> int:
        wait_until(lambda: os.path.exists(self.path), LIMIT_S)
        return 1

    @endpoint
    def close(self, path: str) -> None:
        self.path = path


def config(place: Path, **options: Any) -> TelemetryConfig:
    """Options of a telemetry that keeps events in a place."""
    return TelemetryConfig(directory=str(place), **options)


def host_folders(place: Path) -> list[Path]:
    """The folders of hosts that there are in a place, of all programs."""
    user = place / f"mesh-telemetry-{os.geteuid()}"
    return sorted(host for run in user.iterdir() for host in run.iterdir()) if user.exists() else []


def host_tables(place: Path, **options: Any) -> HostTables:
    """The tables of the only host of the only program."""
    (folder,) = host_folders(place)
    return HostTables(folder, **options)


def rows(tables: HostTables, name: str, until_us: int | None = None) -> list[dict[str, Any]]:
    """All rows of a table, with all that has happened."""
    tables.refresh(5.0)
    batches = tables.batches(name, None, until_us)
    assert all(batch.schema == TABLES[name] for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, TABLES[name]).to_pylist()
    return found


def wait_for_rows(
    tables: HostTables, table: str, count: int = 1, /, **wanted: Any
) -> list[dict[str, Any]]:
    """The rows of a table that have some values, once there are so many."""

    def found() -> list[dict[str, Any]]:
        some = [row for row in rows(tables, table) if all(row[k] == v for k, v in wanted.items())]
        return some if len(some) >= count else []

    return wait_until(found, LIMIT_S)


def kept_bytes(folder: Path) -> int:
    """How many bytes lie in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total
