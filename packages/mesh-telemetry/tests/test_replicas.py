"""The latest rows of a host that is lost: another host has a copy of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S, Worker
from recorded_program import config, host_folders, rows
from workers import WorkerProcess, workers

from mesh_core import attach_to_workers, configured, shutdown_context
from mesh_core.testing import kill_proc, wait_until
from mesh_telemetry import Telemetry, TelemetryConfig
from mesh_telemetry._replicas.folder_changes import Change, FolderChanges
from mesh_telemetry._replicas.replica import Replica, adopted_folders
from mesh_telemetry._tables.host_tables import HostTables

MIB = 1 << 20


@pytest.fixture
def two() -> Iterator[list[WorkerProcess]]:
    # Host numbers are unique within a job, so each test starts a new job.
    shutdown_context().get(LIMIT_S)
    with configured(heartbeat_s=2.0, failure_grace_s=LIMIT_S), workers(2) as started:
        yield started
        shutdown_context().get(LIMIT_S)


def lines_of(telemetry: Telemetry, host: int) -> list[str]:
    """Return the log lines of the processes of a host."""
    sql = "select line from logs where proc like $1 and line like 'line %' order by timestamp_us"
    lines: list[str] = telemetry.query(sql, [f"{host}.%"]).table["line"].to_pylist()
    return lines


def shout(actors: Any, text: str) -> None:
    """Print a line on each host, which no other host prints."""
    for index in range(2):
        actors.slice(hosts=index).shout.call_one(f"{text} of host {index + 1}").get(LIMIT_S)


def wait_for_copy(place: Path, text: str) -> None:
    """Wait until another host has a copy of a text that only one host has printed."""

    def has_copy() -> bool:
        copies = place.glob("mesh-telemetry-*/*/replicas/*/*/logs.*")
        return any(text.encode() in path.read_bytes() for path in copies)

    wait_until(has_copy, LIMIT_S)


def test_the_rows_of_a_lost_host_are_read_from_a_copy_on_another_host(
    place: Path, two: list[WorkerProcess]
) -> None:
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place)) as telemetry:
        procs = hosts.spawn_procs(name="far")
        actors: Any = procs.spawn("workers", Worker, restart="temporary")
        for number in range(3):
            shout(actors, f"line {number}")
        before = lines_of(telemetry, 2)
        assert before == ["line 0 of host 2", "line 1 of host 2", "line 2 of host 2"]
        wait_for_copy(place, "line 2 of host 2")
        messages = "select count(*) as n from messages where proc like '2.%'"
        (sent,) = telemetry.query(messages).table["n"].to_pylist()
        assert sent
        two[1].power_off()

        def failed() -> list[str]:
            return [one.cause for one in telemetry.query("select proc from procs").coverage.failed]

        wait_until(lambda: any("come from a copy" in cause for cause in failed()), LIMIT_S)
        assert lines_of(telemetry, 2) == before
        assert telemetry.query(messages).table["n"].to_pylist() == [sent]
        names = telemetry.query("select distinct mesh, state from procs where proc like '2.%'")
        assert {"mesh": "far", "state": "dead"} in names.table.to_pylist()
        # The rows of live hosts are not duplicated.
        here = ["line 0 of host 1", "line 1 of host 1", "line 2 of host 1"]
        assert lines_of(telemetry, 1) == here
    # The next program on the host removes the files of the lost one.
    with Telemetry(config(place)):
        wait_until(lambda: len(host_folders(place)) == 1, LIMIT_S)


def test_the_rows_of_a_host_are_not_duplicated_after_a_telemetry_restart(
    place: Path, two: list[WorkerProcess]
) -> None:
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place)) as telemetry:
        actors: Any = hosts.spawn_procs(name="far").spawn("workers", Worker)
        shout(actors, "line 0")
        wait_for_copy(place, "line 0 of host 2")
        handle = telemetry._started().hosts.call_one().get(LIMIT_S)[2]
        assert handle.rows is not None
        kill_proc(handle.rows)

        def is_back() -> bool:
            return telemetry.query("select proc from procs").coverage.is_full

        wait_until(is_back, LIMIT_S)
        assert lines_of(telemetry, 2) == ["line 0 of host 2"]


def test_copies_are_bounded_and_the_latest_segments_are_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "1", tmp_path / "2"
    proc = source / "1.77.abcdef01"
    proc.mkdir(parents=True)
    target.mkdir()
    (proc / "identity.json").write_text("{}")
    for number in range(1, 11):
        lines = b"MESHLIN1\n" + bytes([48 + number % 10]) * 1000 + b"\n"
        (proc / f"logs.{number:08d}.{number}.seg").write_bytes(lines)
    changes, replica = FolderChanges(source), Replica(target, 1, 4000)
    while taken := changes.take(2500):
        assert sum(len(one.content) for one in taken if one.file.endswith(".seg")) <= 2500
        replica.apply(taken)
    assert replica.size_bytes() <= 4000 + len("{}")
    assert changes.take(2500) == []
    with (proc / "logs.00000010.10.seg").open("ab") as file:
        file.write(b"more\n")
    (change,) = changes.take(2500)
    assert (change.file, change.content) == ("logs.00000010.10.seg", b"more\n")


@pytest.mark.parametrize("name", ["..", "", "../1.2.evil", "/tmp", "a/b"])
def test_a_copy_cannot_write_outside_its_folder(tmp_path: Path, name: str) -> None:
    replica = Replica(tmp_path, 1, MIB)
    for change in (Change(name, "logs.1.1.seg", 0, b"x"), Change("1.2.a", name, 0, b"x")):
        with pytest.raises(ValueError, match="may send names of files only"):
            replica.apply([change])
    assert not list(tmp_path.rglob("*.seg"))


def test_copies_can_be_disabled(place: Path, two: list[WorkerProcess]) -> None:
    with pytest.raises(ValueError, match="replica_bytes -1 is negative"):
        TelemetryConfig(replica_bytes=-1)
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place, replica_bytes=0)) as telemetry:
        actors: Any = hosts.spawn_procs(name="far").spawn("workers", Worker)
        shout(actors, "line 0")
        assert lines_of(telemetry, 2) == ["line 0 of host 2"]
        assert not list(place.glob("mesh-telemetry-*/*/replicas"))


def test_messages_are_copied_unchanged(place: Path, tmp_path: Path) -> None:
    with Telemetry(config(place)):
        (folder,) = host_folders(place)
        source = HostTables(folder)
        found = rows(source, "messages")
        changes, replica = FolderChanges(folder), Replica(tmp_path, 5, 16 * MIB)
        replica.apply(changes.take(16 * MIB))
        assert adopted_folders(tmp_path) == []
        replica.set_adopted(is_adopted=True)
        copied = rows(HostTables(tmp_path), "messages")
        assert [row["id"] for row in copied][: len(found)] == [row["id"] for row in found]
        assert {row["proc"] for row in copied} == {row["proc"] for row in found}
