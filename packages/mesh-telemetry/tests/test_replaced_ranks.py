"""Telemetry shows a replaced rank as alive everywhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S
from recorded_program import config

from mesh_core import Actor, MeshError, MeshFailure, ProcMesh, endpoint, this_host
from mesh_core.case import ProgramCases
from mesh_core.testing import kill_proc, wait_until
from mesh_telemetry import Telemetry
from mesh_telemetry._dash.actors import procs as procs_topic
from mesh_telemetry._dash.page_queries import PageQueries
from mesh_telemetry._query.plain_json import plain_result
from mesh_telemetry._rows.schemas import TABLE_DOCS
from mesh_telemetry._top.snapshot import take_snapshot

_TIMES = 3


class Pupil(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Teacher(Actor):
    """Owns the processes, and replaces those that die."""

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True

    @endpoint
    def begin(self) -> None:
        self.procs = this_host().spawn_procs({"n": 2}, name="team")
        self.pupils: Any = self.procs.spawn("pupils", Pupil)
        self.pupils.pid.call().get(LIMIT_S)

    @endpoint
    def replaced(self) -> list[int]:
        return replaced(self.procs, self.pupils)


class Asked:
    """Serves the queries of `mesh top`."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def query(self, sql: str, params: list[object]) -> dict[str, Any]:
        return plain_result(self._telemetry.query(sql, params, timeout=LIMIT_S))


def replaced(procs: ProcMesh, pupils: Any) -> list[int]:
    """Kill rank 1 and replace it when its death is detected; return the pids of all ranks."""
    kill_proc(pupils, 1, signal.SIGKILL)

    def is_lost() -> bool:
        try:
            pupils.slice(n=1).pid.call_one().get(LIMIT_S)
        except MeshError:
            return True
        return False

    wait_until(is_lost, LIMIT_S)
    procs.replace(1)
    return [pupils.slice(n=rank).pid.call_one().get(LIMIT_S) for rank in range(2)]


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with Telemetry(config(place)) as started:
        yield started


def states_in_table(telemetry: Telemetry) -> Mapping[int, str]:
    sql = "select pid, state from procs where mesh = 'team'"
    rows = telemetry.query(sql, timeout=LIMIT_S).table.to_pylist()
    return {row["pid"]: row["state"] for row in rows}


def check_alive(telemetry: Telemetry, pids: list[int]) -> None:
    def are_alive() -> bool:
        states = states_in_table(telemetry)
        return all(states.get(pid, "dead") != "dead" for pid in pids)

    wait_until(are_alive, LIMIT_S)
    shown = {one.row["pid"]: one for one in take_snapshot(Asked(telemetry), None).procs.values()}  # type: ignore[arg-type]
    assert [shown[pid].is_over for pid in pids] == [False, False]
    assert [shown[pid].actors for pid in pids] == [{"running": 1}, {"running": 1}]

    def look(sql: str, values: Any) -> Any:
        return telemetry.query(sql, values, timeout=LIMIT_S)

    rows = procs_topic(PageQueries(look, TABLE_DOCS, ProgramCases()), {})["rows"]
    assert all(row["state"] != "dead" for row in rows if row["pid"] in pids)


def test_a_rank_replaced_by_the_program_is_shown_as_alive(telemetry: Telemetry) -> None:
    procs = this_host().spawn_procs({"n": 2}, name="team")
    pupils: Any = procs.spawn("pupils", Pupil)
    pupils.pid.call().get(LIMIT_S)
    for _ in range(_TIMES):
        check_alive(telemetry, replaced(procs, pupils))
    procs.stop().get(LIMIT_S)


def test_a_rank_replaced_by_an_actor_is_shown_as_alive(telemetry: Telemetry) -> None:
    procs = this_host().spawn_procs(name="school")
    teacher: Any = procs.spawn("teacher", Teacher)
    teacher.begin.call_one().get(LIMIT_S)
    for _ in range(_TIMES):
        check_alive(telemetry, teacher.replaced.call_one().get(LIMIT_S))
    procs.stop().get(LIMIT_S)
