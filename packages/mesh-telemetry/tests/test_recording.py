"""The processes that are recorded, and the start and end of the recording."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S, Worker
from recorded_program import (
    config,
    host_folders,
    host_tables,
    kept_bytes,
    rows,
    wait_for_rows,
)

from mesh_core import (
    Actor,
    RestartPolicy,
    endpoint,
    shutdown_context,
    span,
    this_host,
    this_proc,
)
from mesh_core.testing import LocalProcs, kill_proc, proc_pid, wait_until
from mesh_telemetry import StorageError, Telemetry, TelemetryConfig, TelemetryError
from mesh_telemetry._events.proc_folder import write_identity
from mesh_telemetry._recording.collector import _WatchedProcs
from mesh_telemetry._tables.host_tables import HostTables

HERE = Path(__file__).parent


def spawn(local_procs: LocalProcs, name: str = "team", **options: Any) -> tuple[Any, Any]:
    """Return two processes, and a mesh with a worker in each."""
    procs = local_procs({"gpus": 2}, name=name)
    workers: Any = procs.spawn("workers", Worker, **options)
    workers.initialized.get(LIMIT_S)
    return procs, workers


def alive(place: Path) -> dict[str, list[int]]:
    """Return the pids of recorded processes by the names of their meshes."""
    found: dict[str, list[int]] = {}
    for row in rows(host_tables(place), "procs"):
        if row["state"] != "dead":
            found.setdefault(row["mesh"], []).append(row["pid"])
    return found


def test_the_rows_of_a_killed_process_are_kept(place: Path, local_procs: LocalProcs) -> None:
    with Telemetry(config(place)):
        procs, workers = spawn(local_procs, restart="permanent")
        workers.work.call(1).get(LIMIT_S)
        tables = host_tables(place)
        wait_for_rows(tables, "spans", 4)
        pid = kill_proc(procs, 1)
        (death,) = wait_for_rows(tables, "failures", 1, kind="proc")
        assert (death["signal"], death["rank"], death["pid"]) == (9, 1, pid)
        assert death["reason"] == "exited with signal 9"
        wait_until(lambda: any(r["pid"] == pid for r in rows(tables, "procs")), LIMIT_S)
        (dead,) = (row for row in rows(tables, "procs") if row["pid"] == pid)
        assert (dead["state"], dead["cpu_s"], dead["rank"]) == ("dead", None, 1)
        left = [row for row in rows(tables, "spans") if row["proc"] == dead["proc"]]
        assert len(left) == 2


def test_a_replacement_process_is_recorded(place: Path, local_procs: LocalProcs) -> None:
    with Telemetry(config(place)):
        procs, workers = spawn(local_procs, restart=RestartPolicy("permanent"))
        before = proc_pid(procs, 1)
        kill_proc(procs, 1)
        tables = host_tables(place)
        wait_until(
            lambda: len(pids := alive(place).get("team", [])) == 2 and before not in pids, LIMIT_S
        )
        workers.work.call(5).get(LIMIT_S)
        found = wait_for_rows(tables, "spans", 2, name="outer")
        assert len({row["proc"] for row in found}) == 2
        new = [r for r in rows(tables, "procs") if r["rank"] == 1 and r["state"] != "dead"]
        assert [row["incarnation"] for row in new if row["mesh"] == "team"] == [1]
        actors = [row for row in rows(tables, "actors") if row["display_name"] == "workers"]
        assert sorted((row["rank"], row["incarnation"]) for row in actors) == [(0, 0), (1, 1)]


def test_events_are_recorded_once_the_folder_of_a_process_exists(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_in_a_span(*args: Any) -> None:
        with span("meanwhile"):
            write_identity(*args)

    monkeypatch.setattr("mesh_telemetry._recording.recorder.write_identity", write_in_a_span)
    with Telemetry(config(place)):
        wait_for_rows(host_tables(place), "spans", 1, name="meanwhile")


def test_the_owner_of_processes_is_not_notified_of_telemetry_failures(
    place: Path, local_procs: LocalProcs
) -> None:
    heard: list[str] = []

    class Owner(Actor):
        def __init__(self) -> None:
            self.procs = this_host().spawn_procs(name="owned")
            self.worker: Any = self.procs.spawn("worker", Worker)

        @endpoint
        def lose(self) -> None:
            self.worker.add.call_one(1).get()
            kill_proc(self.procs)
            self.worker.add.call_one(1).exception()

        @endpoint
        def heard(self) -> list[str]:
            return heard

        def __supervise__(self, failure: Any) -> bool:
            heard.extend(mesh._name for mesh in failure.meshes)
            return True

    with Telemetry(config(place)):
        owner: Any = local_procs(name="owners").spawn("owner", Owner)
        owner.lose.call_one().get(LIMIT_S)
        wait_until(lambda: owner.heard.call_one().get(LIMIT_S), LIMIT_S)
        wait_for_rows(host_tables(place), "failures", 1, mesh="owned")
        assert set(owner.heard.call_one().get(LIMIT_S)) <= {"owned", "worker"}


def test_processes_spawned_by_actors_are_recorded(place: Path, local_procs: LocalProcs) -> None:
    with Telemetry(config(place)):
        _, workers = spawn(local_procs)
        assert set(workers.spawn.call("nested").get(LIMIT_S).values()) == {2}
        wait_until(lambda: len(alive(place).get("nested", [])) == 2, LIMIT_S)
        found = wait_for_rows(host_tables(place), "actors", 2, display_name="grandchild")
        assert len({row["proc"] for row in found}) == 2


def test_processes_older_than_telemetry_are_recorded_once_watched(
    place: Path, local_procs: LocalProcs
) -> None:
    procs, workers = spawn(local_procs)
    workers.work.call(1).get(LIMIT_S)
    with Telemetry(config(place)) as telemetry:
        tables = host_tables(place)
        assert "team" not in alive(place)
        assert wait_for_rows(tables, "meshes", 1, given_name="workers")
        telemetry.watch(procs)
        telemetry.watch(procs)
        wait_for_rows(tables, "actors", 2, display_name="workers")
        assert rows(tables, "spans") == []
        workers.work.call(2).get(LIMIT_S)
        assert len(wait_for_rows(tables, "spans", 4)) == 4
        assert len(alive(place)["team"]) == 2


def test_processes_are_recorded_only_while_telemetry_runs(
    place: Path, local_procs: LocalProcs
) -> None:
    class Threads(Actor):
        @endpoint
        def are_there(self) -> bool:
            return "mesh-telemetry" in {thread.name for thread in threading.enumerate()}

    procs = local_procs(name="watched")
    asked = procs.spawn("asked", Threads)
    assert not asked.are_there.call_one().get(LIMIT_S)
    telemetry = Telemetry(config(place))
    assert not asked.are_there.call_one().get(LIMIT_S)
    with telemetry:
        telemetry.watch(procs)
        wait_until(lambda: asked.are_there.call_one().get(LIMIT_S), LIMIT_S)
    wait_until(lambda: not asked.are_there.call_one().get(LIMIT_S), LIMIT_S)
    telemetry.close()
    assert host_folders(place) == []


def test_close_leaves_no_process_and_no_folder(place: Path) -> None:
    before = _own_processes()
    telemetry = Telemetry(config(place)).start()
    (folder,) = host_folders(place)
    assert folder.stat().st_mode & 0o777 == 0o700
    new = wait_until(lambda: _own_processes() - before, LIMIT_S)
    telemetry.close()
    telemetry.close()
    assert host_folders(place) == []
    wait_until(lambda: not any(_is_named(pid) for pid in new), LIMIT_S)
    with pytest.raises(TelemetryError, match="call start"):
        telemetry.watch(this_proc())
    with telemetry.start(), pytest.raises(RuntimeError, match="already started"):
        telemetry.start()


def _own_processes() -> set[int]:
    """Return the telemetry processes among the descendants of this program."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True)
    parents = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()[1:]]
    found, wanted = set[int](), {os.getpid()}
    while wanted:
        wanted = {pid for pid, parent in parents if parent in wanted}
        found |= wanted
    return {pid for pid in found if _is_named(pid)}


def _is_named(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "mesh-telemetry"
    except OSError:
        return False


def test_a_fork_of_a_process_does_not_affect_the_recording(
    place: Path, local_procs: LocalProcs
) -> None:
    with Telemetry(config(place)) as telemetry:
        _, workers = spawn(local_procs)
        assert set(workers.fork.call().get(LIMIT_S).values()) == {0}
        child = os.fork()
        if child == 0:
            status = 1
            try:
                telemetry.close()
            except BaseException:
                status = 2
            else:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        workers.work.call(1).get(LIMIT_S)
        assert len(wait_for_rows(host_tables(place), "spans", 4)) == 4
        assert sorted(alive(place)) == ["root", "team"]


def test_expired_rows_are_removed(place: Path, local_procs: LocalProcs) -> None:
    with Telemetry(config(place, retention_s=1.0)):
        _, workers = spawn(local_procs)
        tables = host_tables(place, retention_s=1.0)
        workers.work.call(1).get(LIMIT_S)
        wait_for_rows(tables, "spans", 4)
        wait_until(lambda: rows(tables, "spans") == [], LIMIT_S)

        def files() -> list[str]:
            return [path.name for path in host_folders(place)[0].glob("*/spans.*")]

        wait_until(lambda: not files(), LIMIT_S)


def test_rows_of_live_actors_and_meshes_do_not_expire(place: Path, local_procs: LocalProcs) -> None:
    with Telemetry(config(place, retention_s=0.5)):
        _, workers = spawn(local_procs)
        workers.work.call(1).get(LIMIT_S)
        tables = host_tables(place, retention_s=0.5)
        wait_for_rows(tables, "spans", 4)
        wait_until(lambda: rows(tables, "spans") == [], LIMIT_S)
        assert len(wait_for_rows(tables, "actors", 2, display_name="workers")) == 2
        assert len(wait_for_rows(tables, "meshes", 1, given_name="workers")) == 1


def test_rows_of_live_meshes_are_recorded_again_after_an_eviction(
    place: Path, local_procs: LocalProcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_telemetry._recording.recorder._STATE_S", 0.0)
    with Telemetry(config(place, proc_bytes=1 << 18)):
        procs = local_procs(name="first")
        tables = host_tables(place)
        this = this_proc()
        while not [row for row in rows(tables, "dropped") if row["family"] == "lifecycle"]:
            for number in range(20):
                this.spawn(f"brief-{number}", Worker).stop().get(LIMIT_S)
        assert len(wait_for_rows(tables, "meshes", 1, given_name="first")) == 1
        procs.initialized.get(LIMIT_S)


def test_a_process_stays_within_its_size_limit(place: Path, local_procs: LocalProcs) -> None:
    limit = 1 << 20
    with Telemetry(config(place, proc_bytes=limit)):
        procs = local_procs(name="busy")
        worker: Any = procs.spawn("worker", Worker)
        (folder,) = host_folders(place)
        most = 0
        until = time.monotonic() + 3
        while time.monotonic() < until:
            flooding = worker.flood.call_one(2000)
            flooding.get(LIMIT_S)
            worker.work.call_one(1).get(LIMIT_S)
            most = max(most, *map(kept_bytes, folder.iterdir()))
        assert limit / 4 < most < limit + 4096
        tables = HostTables(folder, cache_bytes=1 << 24)
        lost = wait_for_rows(tables, "dropped", 1, family="messages")
        assert {row["reason"] for row in lost} <= {"space", "ring"}
        # They do not evict other kinds of events.
        assert len(rows(tables, "spans")) >= 2
        assert len(rows(tables, "actors")) == 1
        messages = rows(tables, "messages")
        assert len(messages) > 1000
        assert tables.cached_bytes > 0


def test_evicted_rows_are_kept_in_the_spill_folder(
    place: Path, local_procs: LocalProcs, tmp_path: Path
) -> None:
    options = {"proc_bytes": 1 << 18, "spill": str(tmp_path / "spilled")}
    with Telemetry(config(place, **options)):
        worker: Any = local_procs(name="busy").spawn("worker", Worker)
        for _ in range(10):
            worker.flood.call_one(1000).get(LIMIT_S)
        (folder,) = host_folders(place)
        (spilled,) = (tmp_path / "spilled").glob(f"*/{folder.name}")
        tables = HostTables(folder, spill=spilled)
        sent = wait_for_rows(tables, "sent_messages", 10_000)
        assert len({(row["id"], row["timestamp_us"]) for row in sent}) == len(sent)
        assert kept_bytes(spilled) > kept_bytes(folder)
    assert len(rows(HostTables(folder, spill=spilled), "sent_messages")) >= 5_000


def test_short_lived_processes_use_bounded_space(place: Path, local_procs: LocalProcs) -> None:
    limit = 1 << 18
    with Telemetry(config(place, proc_bytes=limit)):
        (folder,) = host_folders(place)
        for number in range(8):
            procs = this_host().spawn_procs(name=f"short-{number}")
            worker: Any = procs.spawn("worker", Worker)
            worker.flood.call_one(1500).get(LIMIT_S)
            procs.stop().get(LIMIT_S)
        assert kept_bytes(folder) < 7 * limit


def stat_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text()


def test_a_new_process_keeps_old_copies_of_other_hosts(
    place: Path, local_procs: LocalProcs
) -> None:
    with Telemetry(config(place, retention_s=0.1)):
        (folder,) = host_folders(place)
        copy = folder / "replicas" / "2" / "3.4711.abcd"
        copy.mkdir(parents=True)
        for path in (copy, copy.parent, copy.parent.parent):
            os.utime(path, (0, 0))
        spawn(local_procs)
        assert copy.exists()


def test_a_suspended_process_keeps_its_rows(place: Path, local_procs: LocalProcs) -> None:
    with Telemetry(config(place)):
        procs, workers = spawn(local_procs)
        workers.work.call(1).get(LIMIT_S)
        tables = host_tables(place)
        wait_for_rows(tables, "spans", 4)
        pid = kill_proc(procs, 0, signal.SIGSTOP)
        try:
            wait_until(lambda: stat_of(pid).split(") ")[-1].startswith("T"), LIMIT_S)
            began = time.monotonic()
            assert tables.refresh(2.0) >= 2
            assert time.monotonic() - began < LIMIT_S / 2
            assert sum(batch.num_rows for batch in tables.batches("spans", None, None)) == 4
            (still,) = (row for row in rows(tables, "procs") if row["pid"] == pid)
            assert still["state"] == "stopped"
        finally:
            os.kill(pid, signal.SIGCONT)


def test_two_telemetry_instances_can_record_one_program(
    place: Path, local_procs: LocalProcs
) -> None:
    with Telemetry(config(place)):
        with Telemetry(config(place)):
            _, workers = spawn(local_procs)
            workers.work.call(1).get(LIMIT_S)
            for folder in host_folders(place):
                tables = HostTables(folder)
                assert len(wait_for_rows(tables, "spans", 4)) == 4
                names = {row["given_name"] for row in rows(tables, "meshes")}
                assert {"team", "workers"} <= names
                assert not [name for name in names if name.startswith("mesh-telemetry")]
        workers.work.call(1).get(LIMIT_S)
        assert len(wait_for_rows(host_tables(place), "spans", 8)) == 8


def test_a_shutdown_before_telemetry_closes_leaves_no_folder(place: Path) -> None:
    telemetry = Telemetry(config(place)).start()
    worker: Any = this_host().spawn_procs(name="team").spawn("worker", Worker)
    worker.work.call_one(1).get(LIMIT_S)
    wait_for_rows(host_tables(place), "spans", 2)
    shutdown_context().get(LIMIT_S)
    assert host_folders(place) == []
    telemetry.close()


def test_a_directory_that_cannot_be_used_is_refused(place: Path) -> None:
    file = place / "file"
    file.touch()
    with pytest.raises(StorageError, match="set another directory"):
        Telemetry(config(file)).start()
    file.unlink()
    with pytest.raises(ValueError, match="relative"):
        TelemetryConfig(directory="here")
    with pytest.raises(ValueError, match="retention_s"):
        TelemetryConfig(retention_s=0)


PROGRAM = """
import sys
from recorded_actors import Worker
from mesh_core import this_host
from mesh_telemetry import Telemetry, TelemetryConfig
telemetry = Telemetry(TelemetryConfig(directory=sys.argv[1])).start()
procs = this_host().spawn_procs({"gpus": 2}, name="other")
workers = procs.spawn("workers", Worker)
workers.work.call(1).get(60)
print(set(workers.has_module.call("pyarrow").get(60).values()), flush=True)
words = sys.stdin.readline().split()
if words == ["close"]:
    telemetry.close()
"""


def other_program(place: Path) -> subprocess.Popen[str]:
    """Start another program with telemetry, and wait until it is recorded."""
    words = [sys.executable, "-c", PROGRAM, str(place)]
    path = os.pathsep.join([str(HERE), *sys.path])
    program = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert program.stdout is not None
    # A process that only records does not import Arrow.
    assert program.stdout.readline() == "{False}\n"
    return program


def test_two_programs_are_recorded_separately(place: Path, local_procs: LocalProcs) -> None:
    with other_program(place) as program, Telemetry(config(place)):
        _, workers = spawn(local_procs)
        workers.work.call(1).get(LIMIT_S)
        folders = host_folders(place)
        assert len(folders) == 2
        for folder in folders:
            tables = HostTables(folder)
            assert len(wait_for_rows(tables, "spans", 4)) == 4
            assert len({row["mesh"] for row in rows(tables, "procs")}) == 2
        program.communicate("close\n", timeout=LIMIT_S)
        assert program.returncode == 0
        assert len(host_folders(place)) == 1


@pytest.mark.parametrize("end", ["return", "kill"])
def test_the_next_program_removes_the_files_of_one_that_did_not_close(
    place: Path, end: str
) -> None:
    with other_program(place) as program:
        if end == "kill":
            program.kill()
        program.communicate("\n", timeout=LIMIT_S)
    if end == "return":
        assert host_folders(place) == []

    def is_swept() -> bool:
        with Telemetry(config(place)):
            return len(host_folders(place)) == 1

    # Its processes exit a moment after it.
    wait_until(is_swept, LIMIT_S)


def test_stopped_processes_are_no_longer_referenced(place: Path) -> None:
    with Telemetry(config(place)):
        before = {id(one) for one in gc.get_objects() if isinstance(one, _WatchedProcs)}
        for _ in range(4):
            this_host().spawn_procs(name="short").stop().get(LIMIT_S)
        watched = [one for one in gc.get_objects() if isinstance(one, _WatchedProcs)]
        assert len([one for one in watched if id(one) not in before]) <= 1
