"""A worker as a separate process, and inside a user's program."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import Worker
from host_recorder import children, wait_until_gone
from whole_program import run
from workers import WorkerProcess

from mesh_core import HostDied, attach_to_workers, configured, shutdown_context
from mesh_core._actors.agent import Agent
from mesh_core.compat import run_worker_loop_forever, start_worker_loop_forever
from mesh_core.spi import current_process
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_S = 30.0


@pytest.fixture
def fresh_job() -> Iterator[None]:
    """Give each test a separate job, because hosts belong to one job."""
    yield
    shutdown_context().get()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the worker command to completion."""
    argv = [sys.executable, "-m", "mesh_core.worker", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_the_help_of_the_command_lists_its_options() -> None:
    ended = command("--help")
    assert ended.returncode == 0
    for word in ("--listen", "--credentials", "--until-shutdown", "tcp://127.0.0.1:26600"):
        assert word in ended.stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--listen", "http://x"], "has scheme 'http'"),
        (["--listen", "tcp://*:0"], "without credentials"),
        (["--listen", "tcp://127.0.0.1:0", "--credentials", "/nowhere"], "/nowhere"),
        (["--what"], "unrecognized arguments"),
    ],
)
def test_the_command_exits_with_status_2_if_it_cannot_start(words: list[str], why: str) -> None:
    ended = command(*words)
    assert ended.returncode == 2
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr


def is_free(port: int) -> bool:
    """Return whether a process could listen on the port."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("fresh_job")
def test_a_signal_shuts_down_the_worker_and_its_job_gracefully(number: signal.Signals) -> None:
    with WorkerProcess() as worker:
        mesh = attach_to_workers([worker.address]).spawn_procs().spawn("worker", Worker)
        pid = mesh.pid.call_one().get(timeout=LIMIT_S)
        (session,) = worker.sessions()
        waiting = mesh.sleep.call_one(600)
        worker.send(number)
        # Its owner does not have to wait for missing heartbeats.
        with pytest.raises(HostDied, match="its worker was shut down"):
            waiting.get(timeout=LIMIT_S)
        assert worker.wait() == 0
        wait_until_gone([pid])
        me = f"{getpass.getuser()}@{socket.gethostname()} (process {os.getpid()})"
        assert worker.said() == [
            f"mesh worker serves a job of {me} in process {session}",
            f"mesh worker has process {pid}: procs{{hosts: 0/1}}",
            "mesh worker is ending the job",
            "mesh worker has ended the job",
        ]


@pytest.mark.usefixtures("fresh_job")
def test_a_worker_serves_jobs_even_if_its_output_is_not_read() -> None:
    with WorkerProcess() as worker:
        worker.fill_output()
        for _ in range(2):
            mesh = attach_to_workers([worker.address]).spawn_procs().spawn("worker", Worker)
            mesh.pid.call_one().get(timeout=LIMIT_S)
            shutdown_context().get(timeout=LIMIT_S)
        assert worker.end() == 0


@pytest.mark.usefixtures("fresh_job")
def test_a_call_fails_with_host_died_even_if_its_actor_stops_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = Agent._host_left

    def mark_late(*args: Any, **kwargs: Any) -> None:
        wait_until(waiting.done, LIMIT_S)
        mark(*args, **kwargs)

    monkeypatch.setattr(Agent, "_host_left", mark_late)
    with WorkerProcess() as worker:
        mesh = attach_to_workers([worker.address]).spawn_procs().spawn("worker", Worker)
        mesh.pid.call_one().get(timeout=LIMIT_S)
        waiting = mesh.sleep.call_one(600)
        worker.send(signal.SIGTERM)
        with pytest.raises(HostDied, match="its worker was shut down"):
            waiting.get(timeout=LIMIT_S)


@pytest.mark.usefixtures("fresh_job")
def test_hosts_can_be_shut_down_while_they_attach() -> None:
    with WorkerProcess("--until-shutdown") as worker:
        attach_to_workers([worker.address]).shutdown().get(timeout=LIMIT_S)
        assert worker.wait() == 0


@pytest.mark.usefixtures("fresh_job")
def test_a_killed_worker_terminates_its_job() -> None:
    with WorkerProcess() as worker:
        mesh = attach_to_workers([worker.address]).spawn_procs().spawn("worker", Worker)
        pid = mesh.pid.call_one().get(timeout=LIMIT_S)
        left = [*worker.sessions(), pid]
        waiting = mesh.sleep.call_one(600)
        worker.send(signal.SIGKILL)
        with pytest.raises(HostDied):
            waiting.get(timeout=LIMIT_S)
        assert worker.wait() == -signal.SIGKILL
        wait_until_gone(left)


@pytest.mark.usefixtures("fresh_job")
def test_the_worker_reports_a_killed_session_to_its_owner() -> None:
    # Long enough that missing heartbeats are not detected within the test.
    with configured(heartbeat_s=LIMIT_S), WorkerProcess() as worker:
        hosts = attach_to_workers([worker.address])
        mesh = hosts.spawn_procs().spawn("worker", Worker)
        pid = mesh.pid.call_one().get(timeout=LIMIT_S)
        waiting = mesh.sleep.call_one(600)
        (session,) = worker.sessions()
        os.kill(session, signal.SIGKILL)
        with pytest.raises(HostDied, match="its worker reports that"):
            waiting.get(timeout=LIMIT_S)
        wait_until_gone([session, pid])
        # The worker is free for other jobs, and for the same job.
        hosts.replace(0)
        assert mesh.pid.call_one().get(timeout=LIMIT_S) != pid


@pytest.mark.usefixtures("fresh_job")
def test_a_worker_killed_at_startup_leaves_no_processes_behind() -> None:
    for _ in range(3):
        with WorkerProcess() as worker:
            worker.send(signal.SIGKILL)
            # Its output ends when no process is left that could print.
            assert worker.said() == []


def test_a_worker_can_run_inside_a_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    worker = start_worker_loop_forever(address=address)
    mesh = attach_to_workers([address]).spawn_procs().spawn("worker", Worker)
    assert mesh.pid.call_one().get(timeout=LIMIT_S) != os.getpid()
    shutdown_context().get()
    worker.cancel()
    until = time.monotonic() + LIMIT_S
    while not is_free(int(address.rpartition(":")[2])):
        assert time.monotonic() < until, "the port is still taken"
        os.sched_yield()
    wait_until_gone(children(os.getpid()))


@pytest.mark.usefixtures("fresh_job")
def test_a_terminated_worker_waits_until_the_owner_stops_its_processes() -> None:
    with WorkerProcess("--leave-grace", str(2 * LIMIT_S)) as worker:
        procs = attach_to_workers([worker.address]).spawn_procs({"procs": 1})
        actors = procs.spawn("workers", Worker)
        pid = actors.pid.call_one().get()
        worker.send(signal.SIGTERM)
        for _ in range(3):
            assert actors.pid.call_one().get() == pid
        wait_until(lambda: bool(current_process.draining_hosts()), LIMIT_S)
        assert all(
            0 < left_s <= 2 * LIMIT_S for left_s in current_process.draining_hosts().values()
        )
        procs.stop().get()
        # Well before the grace period is over.
        assert worker.wait() == 0


def test_a_worker_loop_returns_when_the_owner_shuts_it_down(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        import threading
        from mesh_core import attach_to_workers
        from mesh_core.compat import run_worker_loop_until_shutdown
        import socket
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        # The signals stay the program's own where the loop is in another thread.
        loop = threading.Thread(target=run_worker_loop_until_shutdown, args=(address,))
        loop.start()
        hosts = attach_to_workers([address])
        print(hosts.spawn_procs().spawn("w", Worker).pid.call_one().get() > 0)
        hosts.shutdown().get()
        loop.join(30)
        print("alive" if loop.is_alive() else "returned")
        """,
    )
    assert (ended.status, ended.out.splitlines()[-1]) == (0, "returned"), ended


def test_a_peer_option_with_a_different_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="leave it out"):
        run_worker_loop_forever(ca="/etc/ca.pem", address="tcp://127.0.0.1:0")
