"""The state of a program at one time, as reported by its hosts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mesh_telemetry._hangs.tables import HANG_ROWS, open_hangs
from mesh_telemetry._top.deadlocks import deadlocks
from mesh_telemetry._top.queries import (
    COUNTS,
    FAILURES,
    HOSTS,
    MESHES,
    PROCS,
    RATES,
    WAITS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mesh_telemetry._serve.program_client import ProgramClient

__all__ = ["RATE_S", "Host", "Mesh", "Proc", "Row", "Snapshot", "sql_list", "take_snapshot"]

Row = dict[str, Any]

#: The time over which messages are counted, in seconds.
RATE_S = 5.0


@dataclass(frozen=True)
class Host:
    """A host of the program with its number."""

    number: int
    name: str
    row: Row


@dataclass(frozen=True)
class Proc:
    """The latest process of a slot.

    Attributes:
        name: The host and slot, such as `0.3`.
        host: The number of its host.
        state: As in `procs`; `died` if it exited unexpectedly, `exited` if it exited otherwise.
        cpu_percent: Percent of one CPU since the previous snapshot; None in the first one.
        messages_s: Received messages per second.
        actors: The number of its actors by state.
        row: Its row in `procs`.
    """

    name: str
    host: int
    state: str
    cpu_percent: float | None
    messages_s: float
    actors: dict[str, int]
    row: Row

    @property
    def is_over(self) -> bool:
        """Whether it has exited for any reason."""
        return self.state in ("died", "exited")

    @property
    def is_system(self) -> bool:
        """Whether it manages a host, and is neither part of a mesh nor the program."""
        return self.row["mesh_id"] == 0 and self.name != "0.0"


@dataclass(frozen=True)
class Mesh:
    """A mesh of processes or actors, with the number of its actors by state."""

    number: int
    name: str
    row: Row
    actors: dict[str, int]

    @property
    def is_of_procs(self) -> bool:
        """Whether it is a mesh of processes."""
        return bool(self.row["class"] == "Proc")


@dataclass(frozen=True)
class Snapshot:
    """The state of a program.

    Attributes:
        at: The time of the query, in seconds since the epoch.
        failures: The rows of `failures`, latest first.
        waits: The rows of `waits`.
        deadlocks: For each deadlock, the rows of `waits` along its cycle.
        hangs: The rows of `hangs` that have begun and not ended.
        unresponsive_hosts: Hosts that did not reply, with the cause.
    """

    at: float
    hosts: dict[int, Host] = field(default_factory=dict)
    procs: dict[str, Proc] = field(default_factory=dict)
    meshes: dict[int, Mesh] = field(default_factory=dict)
    failures: list[Row] = field(default_factory=list)
    waits: list[Row] = field(default_factory=list)
    deadlocks: list[list[Row]] = field(default_factory=list)
    hangs: list[Row] = field(default_factory=list)
    unresponsive_hosts: dict[str, str] = field(default_factory=dict)

    @property
    def dead(self) -> str:
        """The exited processes as an SQL list."""
        return sql_list(one.name for one in self.procs.values() if one.is_over)

    def procs_of(self, mesh_id: int) -> list[str]:
        """Return the processes of a mesh; of an actor mesh, the processes that it runs on."""
        mesh = self.meshes.get(mesh_id)
        if mesh is not None and not mesh.is_of_procs:
            mesh_id = mesh.row["parent_mesh_id"]
        return [one.name for one in self.procs.values() if one.row["mesh_id"] == mesh_id]

    @property
    def waiting(self) -> set[int]:
        """The actors that are deadlocked."""
        return {row["actor_id"] for cycle in self.deadlocks for row in cycle}


def take_snapshot(client: ProgramClient, before: Snapshot | None) -> Snapshot:
    """Query the state of a program.

    Args:
        client: The program.
        before: The previous snapshot, for rates between both.

    Raises:
        ProgramUnavailable: The program has exited or has stopped serving.
        TelemetryError: The program does not respond.
    """
    now = time.time()
    unresponsive_hosts: dict[str, str] = {}

    def rows(sql: str, *params: object) -> list[Row]:
        result = client.query(sql, list(params))
        unresponsive_hosts.update(
            {one["host"]: one["cause"] for one in result["coverage"]["failed"]}
        )
        found: list[Row] = result["rows"]
        return found

    failures = rows(FAILURES)
    procs = _latest(rows(PROCS))
    dead = sql_list(name for name, row in procs.items() if row["state"] == "dead")
    by_proc = _counts(rows(COUNTS.format(by="proc", dead=dead)), "proc")
    by_mesh = _counts(rows(COUNTS.format(by="mesh_id", dead=dead)), "mesh_id")
    rates = {
        row["proc"]: row["messages"] / RATE_S for row in rows(RATES, int((now - RATE_S) * 1e6))
    }
    waits = rows(WAITS)
    hosts = [Host(int(row["proc"].partition(".")[0]), row["host"], row) for row in rows(HOSTS)]
    meshes = [
        Mesh(row["id"], row["given_name"], row, by_mesh.get(row["id"], {})) for row in rows(MESHES)
    ]
    return Snapshot(
        now,
        {one.number: one for one in sorted(hosts, key=lambda one: one.number)},
        _procs(procs, before, rates, by_proc, failures),
        {one.number: one for one in meshes},
        failures,
        waits,
        _deadlocks(waits),
        open_hangs(rows(HANG_ROWS)),
        unresponsive_hosts,
    )


def sql_list(names: Iterable[str]) -> str:
    """Return texts as an SQL list; an empty text, which no row has, if there are none."""
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names) or "''"


def _latest(rows: list[Row]) -> dict[str, Row]:
    """Return the row of the latest process of each slot, ordered by slot."""
    latest = {row["proc"]: row for row in sorted(rows, key=lambda row: row["started_us"])}
    return dict(sorted(latest.items(), key=lambda one: _host_and_slot(one[0])))


def _counts(rows: list[Row], by: str) -> dict[Any, dict[str, int]]:
    found: dict[Any, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row[by], {})[row["state"]] = row["actors"]
    return found


def _procs(
    latest: dict[str, Row],
    before: Snapshot | None,
    rates: dict[str, float],
    counts: dict[str, dict[str, int]],
    failures: list[Row],
) -> dict[str, Proc]:
    killed = {row["pid"] for row in failures if row["kind"] == "proc"}
    found = {}
    for name, row in latest.items():
        state = row["state"]
        if state == "dead":
            state = "died" if row["pid"] in killed else "exited"
        old = before.procs.get(name) if before is not None else None
        found[name] = Proc(
            name,
            int(name.partition(".")[0]),
            state,
            _percent(row, old),
            rates.get(name, 0.0),
            counts.get(name, {}),
            row,
        )
    return found


def _percent(row: Row, old: Proc | None) -> float | None:
    if old is None or old.row["pid"] != row["pid"]:
        return None
    if row["cpu_s"] is None or old.row["cpu_s"] is None:
        return None
    passed_us: int = row["timestamp_us"] - old.row["timestamp_us"]
    if passed_us <= 0:
        return old.cpu_percent
    used_s: float = row["cpu_s"] - old.row["cpu_s"]
    return max(100e6 * used_s / passed_us, 0.0)


def _host_and_slot(name: str) -> tuple[int, int]:
    host, _, slot = name.partition(".")
    return int(host), int(slot)


def _deadlocks(waits: list[Row]) -> list[list[Row]]:
    known = [row for row in waits if row["actor_id"] is not None]
    pairs = {(row["actor_id"], row["for_actor_id"]): row for row in known}
    found = []
    for cycle in deadlocks(pairs):
        ahead = [*cycle[1:], cycle[0]]
        found.append([pairs[pair] for pair in zip(cycle, ahead, strict=True)])
    return found
