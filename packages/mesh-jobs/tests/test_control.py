"""The control service of a worker, called through gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workers import END_LIMIT_S, is_alive

from mesh_core import Actor, HostDied, ProcDied, endpoint
from mesh_core.testing import wait_until

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc_reflection")

from controlled import Applied, applied_job, processes  # noqa: E402

from mesh_jobs._control.client import ControlClient  # noqa: E402
from mesh_jobs._control.control_error import ControlError  # noqa: E402
from mesh_jobs._control.host_clients import as_dict  # noqa: E402
from mesh_jobs._control.messages import FILE  # noqa: E402
from mesh_jobs._control.service import ControlService  # noqa: E402
from mesh_jobs._control.status_error import StatusError  # noqa: E402
from mesh_jobs._host.host import ServedHost  # noqa: E402
from mesh_jobs._host.processes import HostProcess, Kind  # noqa: E402
from mesh_jobs._host.stacks import PySpy  # noqa: E402

SOURCES = Path(__file__).parents[1] / "src/mesh_jobs/_control"


class Sleeper(Actor):
    """Actor whose processes and stacks the tests examine."""

    def __init__(self) -> None:
        self._awake = threading.Event()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def child(self) -> int:
        # The child exits with its parent, however the parent exits.
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE).pid

    @endpoint
    def hang(self) -> None:
        self._awake.wait()  # Here it hangs.


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    """A job for all tests that do not affect its worker."""
    with applied_job(tmp_path_factory.mktemp("control")) as one:
        yield one


@pytest.fixture
def client(applied: Applied) -> Iterator[ControlClient]:
    """A client with the credentials of the job's controller."""
    with applied.client() as one:
        yield one


def test_the_binary_descriptor_matches_the_proto_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    written = tmp_path / "written.binpb"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCES)]
    subprocess.run([*protoc, f"--descriptor_set_out={written}", FILE], check=True)
    # If this fails, write the file again as above.
    assert (SOURCES / FILE.replace(".proto", ".binpb")).read_bytes() == written.read_bytes()


def test_list_shows_a_program_its_processes_and_their_children(
    applied: Applied, client: ControlClient
) -> None:
    free = as_dict(client.list_processes(0.05))
    assert (free["host"]["mesh"], free["host"]["rank"]) == ("ones", 0)
    assert free["host"]["address"] == applied.report.address
    procs = applied.hosts.spawn_procs({"gpus": 2}, name="listed")
    actors = procs.spawn("sleepers", Sleeper)
    pids, children = actors.pid.call().get().values(), actors.child.call().get().values()
    found = {one["pid"]: one for one in as_dict(client.list_processes(0.05))["processes"]}
    assert [found[pid]["kind"] for pid in pids] == ["proc"] * 2
    assert [found[pid]["name"] for pid in pids] == [
        f"listed{{hosts: 0/1, gpus: {rank}/2}}" for rank in range(2)
    ]
    assert [(found[one]["kind"], found[one]["parent"]) for one in children] == [
        ("child", pid) for pid in pids
    ]
    (agent,) = (one for one in found.values() if one["kind"] == "agent")
    owner = found[pids[0]]["owner"]
    assert str(os.getpid()) in owner
    assert agent["owner"] == owner == as_dict(client.list_processes())["host"]["program"]["owner"]
    (worker,) = (one for one in found.values() if one["kind"] == "worker")
    assert (worker["parent"] in found, worker["owner"]) == (False, "")
    assert all(one["memory_bytes"] > 0 and one["threads"] > 0 for one in found.values())
    procs.stop().get()
    wait_until(lambda: not any(map(is_alive, [*pids, *children])))


def test_the_program_gets_an_error_when_a_process_is_stopped(
    applied: Applied, client: ControlClient
) -> None:
    procs = applied.hosts.spawn_procs({"gpus": 2})
    actors = procs.spawn("sleepers", Sleeper)
    pid = actors.slice(gpus=1).pid.call_one().get()
    hanging = actors.slice(gpus=1).hang.call_one()
    told = client.stop(pid)
    assert (told.process.pid, told.is_killed) == (pid, False)
    with pytest.raises(ProcDied) as died:
        hanging.get(timeout=END_LIMIT_S)
    assert died.value.pid == pid
    # The other process keeps running.
    assert actors.slice(gpus=0).pid.call_one().get() != pid
    procs.stop().exception()


def test_a_process_that_ignores_the_stop_request_is_killed(
    applied: Applied, client: ControlClient
) -> None:
    procs = applied.hosts.spawn_procs()
    actors = procs.spawn("sleepers", Sleeper)
    actors.child.call().get()
    (child,) = processes(client, "child")
    told = client.stop(child["pid"], grace_s=0)
    assert told.is_killed
    assert not is_alive(child["pid"])
    assert actors.pid.call().get()
    procs.stop().get()


def test_stacks_show_the_line_where_an_actor_hangs(applied: Applied, client: ControlClient) -> None:
    if not PySpy().is_installed:
        pytest.skip("py-spy is not installed")
    procs = applied.hosts.spawn_procs({"gpus": 2})
    actors = procs.spawn("sleepers", Sleeper)
    pids = actors.pid.call().get().values()
    hanging = actors.slice(gpus=0).hang.call_one()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    hangs = next(at for at, line in enumerate(lines, 1) if line.endswith("# Here it hangs."))

    def where() -> set[tuple[int, int]]:
        return {
            (one["process"]["pid"], frame["line"])
            for one in as_dict(client.stacks())["processes"]
            for thread in one["threads"]
            for frame in thread["frames"]
            if frame["function"].endswith("hang") and frame["file"] == __file__
        }

    # The actor may not have reached this line yet.
    assert wait_until(where, END_LIMIT_S) == {(pids[0], hangs)}
    (alone,) = as_dict(client.stacks(pids[1]))["processes"]
    assert alone["process"]["pid"] == pids[1]
    assert alone["threads"]
    # The call blocks until the process is killed.
    client.stop(pids[0], grace_s=0)
    assert isinstance(hanging.exception(timeout=END_LIMIT_S), ProcDied)
    procs.stop().exception()


def test_queries_do_not_disturb_a_running_program(applied: Applied, client: ControlClient) -> None:
    procs = applied.hosts.spawn_procs({"gpus": 2})
    actors = procs.spawn("sleepers", Sleeper)
    pids = actors.pid.call().get().values()
    over = threading.Event()
    asked = 0

    def look() -> None:
        nonlocal asked
        while not over.is_set():
            client.list_processes()
            client.stacks()
            list(client.logs(10))
            asked += 1

    looking = threading.Thread(target=look)
    looking.start()
    calls = 0
    while asked < 5 and looking.is_alive():
        assert actors.pid.call().get(timeout=END_LIMIT_S).values() == pids
        calls += 1
    over.set()
    looking.join()
    assert asked >= 5
    assert calls > asked
    procs.stop().get()


def test_logs_are_followed_while_they_are_written(applied: Applied, client: ControlClient) -> None:
    followed = client.logs(1000, follow=True)
    first = next(followed)
    assert (first.number, first.text.startswith("mesh worker serves tcp://")) == (1, True)
    for line in followed:
        if line.text.startswith("mesh worker serves a job of"):
            break
    assert line.number > 1
    assert [one.number for one in client.logs(1)] == [max(one.number for one in client.logs(100))]


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda client: client.stop(1), "NOT_FOUND", "has no process 1"),
        (lambda client: client.stacks(1), "NOT_FOUND", "has no process 1"),
        (lambda client: client.list_processes(9.0), "INVALID_ARGUMENT", "give 0 to 5000"),
        (lambda client: client.stop(1, 301.0), "INVALID_ARGUMENT", "give 0 to 300"),
        (lambda client: client.stop(1, float("nan")), "INVALID_ARGUMENT", "give 0 to 300"),
    ],
)
def test_an_invalid_request_is_refused_with_a_reason(
    client: ControlClient, call: Any, code: str, words: str
) -> None:
    with pytest.raises(ControlError, match=words) as refused:
        call(client)
    assert refused.value.code == code


@pytest.mark.parametrize("kind", ["worker", "machinery"])
def test_the_worker_and_its_internal_processes_cannot_be_stopped(
    applied: Applied, client: ControlClient, kind: str
) -> None:
    procs = applied.hosts.spawn_procs()
    procs.initialized.get()
    with pytest.raises(ControlError) as refused:
        client.stop(processes(client, kind)[0]["pid"])
    assert refused.value.code == "FAILED_PRECONDITION"
    procs.stop().get()


def test_stacks_without_py_spy_says_what_to_install() -> None:
    spy = PySpy()
    spy._program = None
    with pytest.raises(
        StatusError, match=r"pip install 'torchmesh-jobs\[stacks\]' there"
    ) as refused:
        ControlService(ServedHost("n7", "ones", 0, 0, ""), spy).stacks(None, None)
    assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_a_host_is_free_once_its_worker_ends_the_job() -> None:
    host = ServedHost("n7", "ones", 0, 0, "")
    agent = HostProcess(
        2, 1, Kind.AGENT, "", ticks=0, started=0.0, cpu_s=0.0, cpu=0.0, memory_bytes=0, threads=1,
        state="S", command="",
    )  # fmt: skip
    host.record_line("mesh worker serves a job of ada@login1 (process 7) in process 2")
    program = host.program_among([agent])
    assert program is not None
    assert program.owner == "ada@login1 (process 7)"
    # The agent process exits later, once the owner has received its last reply.
    host.record_line("mesh worker is ending the job")
    assert host.program_among([agent]) is None


def test_stopping_a_program_fails_its_calls_and_keeps_the_host_running(tmp_path: Path) -> None:
    with applied_job(tmp_path) as one:
        procs = one.hosts.spawn_procs()
        actors = procs.spawn("sleepers", Sleeper)
        actors.pid.call().get()
        hanging = actors.hang.call()
        with one.client() as client:
            told = client.stop()
            assert as_dict(told.process)["kind"] == "agent"
            with pytest.raises((HostDied, ProcDied)):
                hanging.get(timeout=END_LIMIT_S)
            wait_until(lambda: len(processes(client, "agent")) == 1, END_LIMIT_S)
            assert client.is_healthy()
            assert as_dict(client.list_processes())["host"]["program"] is None
            with pytest.raises(ControlError, match="serves no program") as refused:
                client.stop()
            assert refused.value.code == "FAILED_PRECONDITION"
