"""Workers as hosts of a job: attaching, serving, and every way in which a job ends."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import Worker
from host_recorder import wait_until_gone
from worker_fixtures import attached, running_workers
from workers import WorkerProcess

from mesh_core import (
    Credentials,
    ForeignHandle,
    HostDied,
    MeshStopped,
    ProcDied,
    attach_to_workers,
    configured,
    endpoint,
    shutdown_context,
)
from mesh_core._core import request_attach
from mesh_core._hosts.attach_request import AttachRequest
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mesh_core import HostMesh

LIMIT_S = 30.0

pytestmark = pytest.mark.usefixtures("fresh_job")


class Member(Worker):
    """The actor on the hosts."""

    @endpoint
    def pids(self) -> tuple[int, int]:
        """Return the pids of this process and its parent."""
        return os.getpid(), os.getppid()

    @endpoint
    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    @endpoint
    def ask(self, other: Any, value: int) -> int:
        """Call another member on any host."""
        answer: int = other.echo.call_one(value).get()
        return answer

    @endpoint
    def never(self) -> None:
        """Never return."""
        signal.pause()


@pytest.fixture
def fresh_job() -> Iterator[None]:
    """Give each test a separate job, because hosts belong to one job."""
    yield
    shutdown_context().get()


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """Two workers, which look like two machines."""
    with running_workers(2) as started:
        yield started
        # The job ends before the workers do, which would otherwise be reported to it.
        shutdown_context().get()


def test_actors_on_other_hosts_are_called_like_local_actors(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers)
    assert hosts.initialized.get(timeout=30)
    assert hosts.extent == {"hosts": 2}
    mesh = hosts.spawn_procs({"procs": 2}).spawn("member", Member)
    assert mesh.extent == {"hosts": 2, "procs": 2}
    assert mesh.echo.call(1).get().values() == [1, 1, 1, 1]
    pids = mesh.pids.call().get().values()
    assert len({pid for pid, _ in pids}) == 4
    assert len({parent for _, parent in pids}) == 2


def test_hosts_of_a_finished_job_cannot_be_used_in_the_next_job(
    workers: list[WorkerProcess],
) -> None:
    before = attached(workers[:1])
    before.initialized.get(timeout=LIMIT_S)
    shutdown_context().get()
    hosts = attached(workers[1:])
    mesh = hosts.spawn_procs().spawn("member", Member)
    with pytest.raises(ForeignHandle, match="host mesh belongs to job"):
        before.spawn_procs()
    assert before != hosts
    before.shutdown().get()
    assert mesh.echo.call_one(5).get(timeout=LIMIT_S) == 5


def test_an_actor_calls_an_actor_on_another_host(workers: list[WorkerProcess]) -> None:
    mesh = attached(workers).spawn_procs({"procs": 1}).spawn("member", Member)
    first, second = mesh.slice(hosts=0), mesh.slice(hosts=1)
    assert first.ask.call_one(second, 7).get(timeout=30) == 7
    assert second.ask.call_one(first, 8).get(timeout=30) == 8


def test_large_payloads_cross_hosts(workers: list[WorkerProcess]) -> None:
    mesh = attached(workers).spawn_procs({"procs": 1}).spawn("member", Member)
    payload = os.urandom(24 << 20)
    echoed = mesh.echo.call(payload).get(timeout=60).values()
    assert echoed == [payload, payload]


def test_the_caller_gets_an_error_when_a_process_on_another_host_is_killed(
    workers: list[WorkerProcess],
) -> None:
    mesh = attached(workers).spawn_procs({"procs": 2}).spawn("member", Member)
    victim = mesh.slice(hosts=1, procs=1)
    pid, _ = victim.pids.call_one().get()
    waiting = victim.never.call_one()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcDied) as raised:
        waiting.get(timeout=30)
    assert raised.value.signal == signal.SIGKILL
    assert raised.value.pid == pid
    assert mesh.slice(hosts=0).echo.call(2).get().values() == [2, 2]


def test_an_unresponsive_host_is_dead_for_all_waiting_callers(workers: list[WorkerProcess]) -> None:
    with configured(heartbeat_s=0.3, unresponsive_timeout_s=1.5):
        mesh = attached(workers).spawn_procs({"procs": 1}).spawn("member", Member)
        alive, silent = mesh.slice(hosts=0), mesh.slice(hosts=1)
        assert alive.ask.call_one(silent, 1).get(timeout=30) == 1
        # The actor is busy from here on.
        waiting = silent.never.call_one()
        asked_by_other = alive.ask.call_one(silent, 2)
        workers[1].signal_all(signal.SIGSTOP)
        with pytest.raises(
            HostDied, match=r"unresponsive: its machine acknowledges .* not replied for 1\.5 s"
        ):
            waiting.get(timeout=30)
        with pytest.raises(HostDied):
            asked_by_other.get(timeout=30)
        with pytest.raises(HostDied):
            silent.echo.call_one(1).get(timeout=30)
        assert alive.echo.call_one(3).get(timeout=30) == 3
        mesh.stop().get(timeout=30)


def test_a_host_that_is_paused_briefly_is_not_declared_dead(workers: list[WorkerProcess]) -> None:
    with configured(heartbeat_s=0.2):
        mesh = attached(workers).spawn_procs({"procs": 1}).spawn("member", Member)
        stopped = mesh.slice(hosts=1)
        assert stopped.echo.call_one(1).get(timeout=30) == 1
        workers[1].signal_all(signal.SIGSTOP)
        try:
            answer = stopped.echo.call_one(2)
            # More than ten heartbeats.
            with pytest.raises(TimeoutError, match=r"host .* has not replied for \d s"):
                answer.get(timeout=3)
        finally:
            workers[1].signal_all(signal.SIGCONT)
        assert answer.get(timeout=30) == 2
        mesh.stop().get(timeout=30)


def test_a_worker_serves_one_job_after_another(workers: list[WorkerProcess]) -> None:
    for value in range(3):
        mesh = attached(workers).spawn_procs({"procs": 1}).spawn("member", Member)
        pids = [pid for pid, _ in mesh.pids.call().get(timeout=30).values()]
        assert mesh.echo.call(value).get().values() == [value, value]
        shutdown_context().get()
        wait_until_gone(pids)
        with pytest.raises(MeshStopped):
            mesh.echo.call(value).get(timeout=30)


def test_a_busy_worker_names_the_owner_of_its_job(
    workers: list[WorkerProcess], tmp_path: Path
) -> None:
    from whole_program import run

    attached(workers[:1]).initialized.get(timeout=30)
    ended = run(
        tmp_path,
        f"""
        from mesh_core import attach_to_workers, configure
        configure(attach_timeout_s=0.1)
        attach_to_workers([{workers[0].address!r}]).initialized.get()
        """,
    )
    assert ended.status == 1
    assert f"it serves a job of {_me()}" in ended.err


def test_the_workers_of_a_killed_program_become_free(
    workers: list[WorkerProcess], tmp_path: Path
) -> None:
    from whole_program import run

    ended = run(
        tmp_path,
        f"""
        from mesh_core import attach_to_workers, configure
        configure(host_lease_s=1)
        mesh = attach_to_workers([{workers[0].address!r}]).spawn_procs().spawn("w", Worker)
        print("pid", mesh.pid.call_one().get())
        print("ready", flush=True)
        time.sleep(60)
        """,
        send=signal.SIGKILL,
    )
    (said,) = [line for line in ended.out.splitlines() if line.startswith("pid")]
    wait_until_gone([int(said.split()[1])])
    mesh = attached(workers).spawn_procs().spawn("member", Member)
    assert mesh.echo.call(5).get(timeout=30).values() == [5, 5]


def test_the_error_names_the_address_of_an_unreachable_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with configured(attach_timeout_s=0.1):
        hosts = attach_to_workers([f"tcp://127.0.0.1:{port}"])
        with pytest.raises(HostDied, match=f"127.0.0.1:{port} cannot be reached"):
            hosts.initialized.get(timeout=30)
        with pytest.raises(HostDied):
            hosts.spawn_procs()


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        ([], "no workers"),
        ("tcp://127.0.0.1:1", "a single string"),
        (["tcp://127.0.0.1:1", "tcp://127.0.0.1:1"], "twice"),
        (["http://127.0.0.1:1"], "scheme"),
        (["tcp://127.0.0.1:99999"], "port"),
        (["tcp://[::1:4"], "IPv6"),
        (["tcp://192.0.2.1:4"], "credentials"),
    ],
)
def test_bad_addresses_are_refused_at_the_call(addresses: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        attach_to_workers(addresses)


def test_a_worker_refuses_to_listen_for_other_machines_without_credentials(tmp_path: Path) -> None:
    from mesh_core.worker import main

    assert main(["--listen", "tcp://*:0"]) == 2


def test_hosts_with_credentials_of_one_job_can_connect(tmp_path: Path) -> None:
    credentials = Credentials.create()
    credentials.issue(role="worker", name="host-1").save(tmp_path / "worker")
    with WorkerProcess(credentials=tmp_path / "worker") as worker:
        hosts = attached([worker], credentials=credentials)
        mesh = hosts.spawn_procs({"procs": 2}).spawn("member", Member)
        payload = os.urandom(5 << 20)
        assert mesh.echo.call(payload).get(timeout=30).values() == [payload, payload]
        values = [mesh.slice(procs=0).echo.call_one(n) for n in range(200)]
        assert [value.get(timeout=30) for value in values] == list(range(200))
        shutdown_context().get()


@pytest.mark.parametrize("has_credentials", [True, False])
def test_a_client_without_credentials_of_the_job_is_refused_with_a_reason(
    tmp_path: Path, has_credentials: bool
) -> None:
    Credentials.create().issue(role="worker", name="host-1").save(tmp_path / "worker")
    stranger = Credentials.create() if has_credentials else None
    with WorkerProcess(credentials=tmp_path / "worker") as worker, configured(attach_timeout_s=0.1):
        hosts = attached([worker], credentials=stranger)
        why = "belongs to job" if has_credentials else "give those of its job"
        with pytest.raises(HostDied, match=why):
            hosts.initialized.get(timeout=30)


def test_an_until_shutdown_worker_exits_when_its_host_is_shut_down() -> None:
    with WorkerProcess("--until-shutdown") as worker:
        hosts = attached([worker])
        hosts.initialized.get(timeout=30)
        hosts.shutdown().get(timeout=30)
        assert worker.wait() == 0


def test_an_until_shutdown_worker_keeps_running_when_its_host_is_detached() -> None:
    with WorkerProcess("--until-shutdown") as worker:
        attached([worker]).detach().get(timeout=LIMIT_S)
        hosts = attached([worker])
        hosts.initialized.get(timeout=LIMIT_S)
        hosts.shutdown().get(timeout=LIMIT_S)
        assert worker.wait() == 0


def test_workers_are_identified_by_their_ids_when_attached_again(
    workers: list[WorkerProcess],
) -> None:
    addresses = [worker.address for worker in workers]
    first = attached(workers)
    first.initialized.get(timeout=LIMIT_S)
    ids = first.worker_ids
    assert len({*ids, ""}) == 3
    first.detach().get(timeout=LIMIT_S)

    def come_back() -> HostMesh | None:
        # Workers are queried only once, and workers of the previous test may not be free yet.
        hosts = attach_to_workers(addresses, worker_ids=ids)
        try:
            hosts.initialized.get(timeout=LIMIT_S)
        except HostDied:
            hosts.detach().get(timeout=LIMIT_S)
            return None
        return hosts

    hosts = wait_until(come_back, LIMIT_S)
    assert hosts.worker_ids == ids
    assert hosts.spawn_procs().spawn("member", Member).echo.call(1).get().values() == [1, 1]
    hosts.detach().get(timeout=LIMIT_S)

    def is_refused() -> bool:
        swapped = attach_to_workers(addresses, worker_ids=ids[::-1])
        with pytest.raises(HostDied) as raised:
            swapped.initialized.get(timeout=LIMIT_S)
        return "another worker is in its place" in str(raised.value)

    wait_until(is_refused, LIMIT_S)
    workers[0].end()
    with configured(attach_timeout_s=10 * LIMIT_S):
        gone = attach_to_workers(addresses[:1], worker_ids=ids[:1])
    with pytest.raises(HostDied, match="cannot be reached"):
        gone.initialized.get(timeout=LIMIT_S)
    with pytest.raises(ValueError, match="1 worker_ids for 2 hosts"):
        attach_to_workers(addresses, worker_ids=ids[:1])


def _me() -> str:
    import getpass

    return getpass.getuser()


def test_an_invalid_attach_request_is_refused_and_the_worker_stays_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with WorkerProcess() as worker:
        config = {"no_such_setting": 1}
        order = AttachRequest(b"j" * 16, b"t" * 32, 1, "someone", 10.0, config, [])
        name = worker.address.removeprefix("tcp://")
        keys = Credentials.local()._keys
        sessions = []
        for _ in range(2):
            is_taken, why, is_final = request_attach([name], keys, order.encode(), LIMIT_S)
            assert (is_taken, is_final) == (False, True)
            assert b"unknown setting 'no_such_setting'" in why
            sessions += worker.sessions()
        assert len(set(sessions)) == 1
        # A permanent refusal is not retried until the timeout.
        with monkeypatch.context() as patch, configured(attach_timeout_s=10 * LIMIT_S):
            patch.setattr("mesh_core._hosts.attach_request.VERSION", 2)
            hosts = attach_to_workers([worker.address])
            with pytest.raises(HostDied, match="the client uses version 2"):
                hosts.initialized.get(timeout=LIMIT_S)
        hosts = attach_to_workers([worker.address])
        assert hosts.spawn_procs().spawn("member", Member).echo.call(1).get().values() == [1]
