"""Stopping meshes over HTTP through their owners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from action_requests import post
from recorded_actors import LIMIT_S, Worker
from recorded_program import config

from mesh_core import Actor, ActorError, MeshStopped, endpoint, this_host
from mesh_core.spi import current_process
from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry

WHY = "stopped by request of mesh top"


class Foreman(Actor):
    """Owns workers in a process that it has started."""

    @endpoint
    def hire(self, place: str) -> int:
        self.procs = this_host().spawn_procs(name=f"shed_{place}")
        self.workers = self.procs.spawn(f"hired_{place}", Worker)
        return self.workers.add.call_one(1).get()

    @endpoint
    def order(self) -> str:
        try:
            return str(self.workers.add.call_one(1).get(LIMIT_S))
        except MeshStopped as error:
            return error.reason or ""


@pytest.fixture(scope="module")
def telemetry(shared_place: Path) -> Iterator[Telemetry]:
    """Telemetry that keeps the names of meshes, so each test uses other names."""
    with Telemetry(config(shared_place)) as started:
        yield started


def stop(telemetry: Telemetry, **wanted: object) -> tuple[int, dict[str, Any]]:
    """Send a stop request; return the status and the response."""
    serving = telemetry._servings[0] if telemetry._servings else telemetry.serve()
    status, _, content = post(serving, "/stop", **{"by": "mesh top", **wanted})
    answer = json.loads(content)
    return status, answer if status == HTTPStatus.OK else answer["error"]


def mesh(telemetry: Telemetry, name: str) -> dict[str, Any]:
    """Return the number and the owner of a mesh, once it is listed."""
    sql = "select id as mesh_id, proc from meshes where given_name = $1"
    found = wait_until(lambda: telemetry.query(sql, [name]).table.to_pylist(), LIMIT_S)
    return dict(found[0])


def test_actors_of_the_program_are_stopped(telemetry: Telemetry) -> None:
    with this_host().spawn_procs({"n": 2}, name="team") as procs:
        workers: Any = procs.spawn("workers", Worker)
        workers.add.call(1).get(LIMIT_S)
        status, said = stop(telemetry, **mesh(telemetry, "workers"))
        assert (status, said["name"], said["state"]) == (200, "workers", "stopping")
        with pytest.raises(MeshStopped, match=WHY):
            workers.add.call(1).get(LIMIT_S)
        # The processes still exist, and accept other actors.
        others: Any = procs.spawn("others", Worker)
        others.add.call(1).get(LIMIT_S)


def test_processes_are_stopped_with_their_actors(telemetry: Telemetry) -> None:
    procs = this_host().spawn_procs({"n": 2}, name="group")
    workers: Any = procs.spawn("hands", Worker)
    workers.add.call(1).get(LIMIT_S)
    assert stop(telemetry, **mesh(telemetry, "group"))[0] == 200
    with pytest.raises(MeshStopped, match=WHY):
        workers.add.call(1).get(LIMIT_S)
    procs.stop().get(LIMIT_S)
    sql = "select count(*) as n from procs where mesh = 'group' and state <> 'dead'"
    wait_until(lambda: telemetry.query(sql).table.to_pylist() == [{"n": 0}], LIMIT_S)


@pytest.mark.parametrize("name", ["hired", "shed"])
def test_meshes_owned_by_an_actor_are_stopped(telemetry: Telemetry, name: str) -> None:
    with this_host().spawn_procs(name="office") as procs:
        foreman: Any = procs.spawn("foreman", Foreman)
        assert foreman.hire.call_one(name).get(LIMIT_S) == 2
        found = mesh(telemetry, f"{name}_{name}")
        assert found["proc"] != "0.0"
        assert stop(telemetry, **found)[0] == 200
        assert foreman.order.call_one().get(LIMIT_S) == WHY


def test_stopping_telemetry_or_the_program_is_refused(telemetry: Telemetry) -> None:
    own = [one.actor for one in current_process.snapshot() if one.text.startswith("mesh-telemetry")]
    assert own
    for number in own:
        status, said = stop(telemetry, mesh_id=number, proc="0.0")
        assert (status, said["code"]) == (403, "own")
        assert "close the telemetry" in said["message"]
    status, said = stop(telemetry, mesh_id=0, proc="0.0")
    assert (status, said["code"]) == (403, "root")
    assert telemetry.query("select 1 as one").coverage.is_full


@pytest.mark.parametrize(
    ("wanted", "status", "code"),
    [
        ({"mesh_id": 1 << 40, "proc": "0.0"}, 404, "not_found"),
        ({"mesh_id": 99, "proc": "0.77"}, 404, "not_found"),
        ({"mesh_id": 99, "proc": "7.0"}, 404, "not_found"),
        ({"mesh_id": "99", "proc": "0.0"}, 400, "bad_json"),
        ({"mesh_id": True, "proc": "0.0"}, 400, "bad_json"),
        ({"mesh_id": 1 << 64, "proc": "0.0"}, 400, "bad_json"),
        ({"mesh_id": 99}, 400, "bad_json"),
        ({"mesh_id": 99, "proc": "../0"}, 400, "bad_json"),
        ({"mesh_id": 99, "proc": "0.0", "by": "a\nb"}, 400, "bad_json"),
        ({"mesh_id": 99, "proc": "0.0", "by": "x" * 65}, 400, "bad_json"),
    ],
)
def test_a_failed_stop_request_has_an_error_code(
    telemetry: Telemetry, wanted: dict[str, object], status: int, code: str
) -> None:
    found, said = stop(telemetry, **wanted)
    assert (found, said["code"]) == (status, code)


def test_a_stop_over_http_is_equivalent_to_a_stop_by_the_owner(telemetry: Telemetry) -> None:
    with this_host().spawn_procs(name="team") as procs:
        workers: Any = procs.spawn("breakers", Worker)
        with pytest.raises(ActorError):
            workers.fail.call_one().get(LIMIT_S)
        found = mesh(telemetry, "breakers")
        assert stop(telemetry, **found)[0] == 200
        workers.stop().get(LIMIT_S)
        assert stop(telemetry, **found)[0] == 404
