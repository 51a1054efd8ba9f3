"""A job survives its program: another program with the same identity takes it over."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from host_recorder import wait_until_gone
from kept_actors import Counter, Keeper, Laden
from lost_program import ATTACH_AND_HOLD, TAKE_OVER, LostProgram
from workers import WorkerProcess

from mesh_core import (
    Actor,
    ActorFailed,
    Credentials,
    HostDied,
    Job,
    MeshStopped,
    ProcDied,
    SpawnError,
    TakeOverError,
    attach_to_workers,
    configured,
    shutdown_context,
    take_over,
    this_host,
)
from mesh_core._core import request_attach
from mesh_core._hosts.attach_request import AttachRequest
from mesh_core._hosts.take_over_request import TakeOverRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("fresh_job")

SPAWN = """
procs = hosts.spawn_procs({"procs": 2}, name="trainers")
counters = procs.spawn("counter", Counter, 10)
counters.add.call(5).get()
"""


@pytest.fixture
def fresh_job(workers: list[WorkerProcess]) -> Iterator[None]:
    """Give each test a separate job, which ends before its workers do."""
    shutdown_context().get()
    with configured(heartbeat_s=0.3, host_lease_s=1.0):
        yield
        shutdown_context().get()


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    """The credentials of the controller in one folder, and of the workers in another."""
    made = Credentials.create()
    made.save(tmp_path / "controller")
    made.issue(role="worker", name="host").save(tmp_path / "worker")
    return made


@pytest.fixture
def workers(credentials: Credentials, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    """Two workers, which look like two machines."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(WorkerProcess(credentials=tmp_path / "worker")) for _ in range(2)
        ]


def addresses(workers: list[WorkerProcess]) -> list[str]:
    """Return the addresses of the workers."""
    return [worker.address for worker in workers]


def taken_over(
    workers: list[WorkerProcess], credentials: Credentials, folder: Path, *code: str
) -> Job:
    """Run a program, kill it, and take over its job."""
    with LostProgram(folder, addresses(workers), ATTACH_AND_HOLD, *code or (SPAWN,)) as program:
        program.kill()
    return take_over(addresses(workers), credentials=credentials)


def test_a_successor_finds_the_job_unchanged(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    job = taken_over(workers, credentials, tmp_path)
    assert job.generation >= 1
    assert job.failures == ()
    assert job.hosts.extent == {"hosts": 2}
    assert job.procs["trainers"].extent == {"hosts": 2, "procs": 2}
    assert job.actors["counter"].extent == {"hosts": 2, "procs": 2}
    counters = job.actor("counter", Counter)
    assert counters.add.call(1).get(timeout=30).values() == [16, 16, 16, 16]
    more = job.procs["trainers"].spawn("more", Counter, 0)
    assert more.add.call(1).get(timeout=30).values() == [1, 1, 1, 1]
    others = job.hosts.spawn_procs().spawn("others", Counter, 7)
    assert others.add.call(0).get(timeout=30).values() == [7, 7]


def test_the_error_for_a_wrong_name_lists_the_existing_names(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    twice = """
    procs.spawn("twin", Counter, 1)
    procs.spawn("twin", Counter, 2).add.call(0).get()
    """
    job = taken_over(workers[:1], credentials, tmp_path, SPAWN, twice)
    with pytest.raises(KeyError, match="'counter', 'twin'"):
        job.actors["typo"]
    with pytest.raises(KeyError, match="2 meshes are named"):
        job.actors["twin"]
    second = job.actors.all_of("twin")[1]
    assert second.add.call(0).get(timeout=30).values() == [2, 2]
    with pytest.raises(TypeError, match="a mesh of Counter, not of Keeper"):
        job.actor("counter", Keeper)
    assert list(job.actors) == ["counter", "twin"]


def test_a_successor_can_use_actors_of_a_class_that_it_cannot_import(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    code = """
    class Local(Counter):
        @endpoint
        def double(self):
            return 2 * self.count
    hosts.spawn_procs().spawn("local", Local, 4).double.call().get()
    """

    class Local(Actor):
        """The class of the previous program, reduced to the necessary parts."""

    job = taken_over(workers[:1], credentials, tmp_path, code)
    assert job.actors["local"].double.call().get(timeout=30).values() == [8]
    with pytest.raises(TypeError):
        job.actor("local", Local)
    assert job.actor("local", Counter).add.call(1).get(timeout=30).values() == [5]


def test_pending_calls_of_the_lost_program_are_cancelled(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    code = """
    counters = hosts.spawn_procs({"procs": 1}).spawn("counter", Counter, 10)
    counters.add.call(0).get()
    port, told = Channel.open()
    running = counters.wait.call(port)
    queued = counters.add.call(100)
    told.recv().get(), told.recv().get()
    """
    job = taken_over(workers, credentials, tmp_path, code)
    counters = job.actor("counter", Counter)
    assert counters.last.call().get(timeout=30).values() == [["cancelled"]] * 2
    assert counters.add.call(1).get(timeout=30).values() == [11, 11]


def test_meshes_owned_by_actors_survive_a_take_over(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    code = """
    keepers = hosts.spawn_procs().spawn("keeper", Keeper)
    print(keepers.ask.call(5).get().values())
    """
    job = taken_over(workers, credentials, tmp_path, code)
    assert job.actor("keeper", Keeper).ask.call(5).get(timeout=30).values() == [110, 110]


STANDBY_IS_HELD = """
from mesh_core._runtime.runtime import runtime
while not all(worker.is_held for worker in runtime().places.standby._workers):
    time.sleep(0.01)
"""


def test_the_successor_takes_over_the_standby_hosts(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    attach = ATTACH_AND_HOLD.replace("orphan_grace_s=60", "orphan_grace_s=60, standby=1")
    code = (attach, SPAWN, STANDBY_IS_HELD)
    with LostProgram(tmp_path, addresses(workers), *code) as program:
        program.kill()
    job = take_over(addresses(workers)[:1], credentials=credentials)
    # No other job got the standby worker while the job waited for a successor.
    order = AttachRequest(b"j" * 16, b"t" * 32, 1, "another", 10.0, {}, [])
    there = workers[1].address.removeprefix("tcp://")
    is_taken, why, _ = request_attach([there], credentials._keys, order.encode(), 30.0)
    assert (is_taken, b"it is kept as a standby of a job" in why) == (False, True)
    counters = job.actor("counter", Counter)
    assert counters.add.call(1).get(timeout=30).values() == [16, 16]
    workers[0].power_off()
    with pytest.raises(HostDied):
        counters.add.call(0).get(timeout=30)
    job.hosts.replace(0)
    assert counters.add.call(1).get(timeout=30).values() == [11, 11]


def test_process_deaths_before_the_take_over_are_reported(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    code = """
    counters = hosts.spawn_procs({"procs": 1}, name="trainers").spawn("counter", Counter, 10)
    print(*counters.pid.call().get().values())
    """
    with LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, code) as program:
        program.kill()
        pid = int(program.said[0].split()[1])
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])
    job = take_over(addresses(workers), credentials=credentials)
    (died,) = job.failures
    assert isinstance(died, ProcDied)
    assert (died.mesh_name, died.rank, died.signal, died.pid) == ("trainers", 1, 9, pid)
    counters = job.actor("counter", Counter)
    with pytest.raises(ProcDied):
        counters.add.call(1).get(timeout=30)
    job.procs["trainers"].replace(1)
    assert counters.add.call(1).get(timeout=30).values() == [12, 11]


def test_actor_failures_before_the_take_over_are_reported(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    code = """
    counters = hosts.spawn_procs().spawn("counter", Counter, 10)
    counters.add.call(0).get()
    port, told = Channel.open()
    counters.fail_without.broadcast(port, os.getpid())
    told.recv().get()
    """
    job = taken_over(workers[:1], credentials, tmp_path, code)
    (failed,) = job.failures
    assert isinstance(failed, ActorFailed)
    assert isinstance(failed.__cause__, ValueError)
    assert failed.mesh_name == "counter"


def test_restart_policies_apply_after_the_take_over(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    code = """
    policy = RestartPolicy("transient", intensity_max=5)
    counters = hosts.spawn_procs().spawn("counter", Counter, 10, restart=policy)
    counters.add.call(5).get()
    """
    job = taken_over(workers, credentials, tmp_path, code)
    counters = job.actor("counter", Counter)
    first, second = counters.slice(hosts=0), counters.slice(hosts=1)
    os.kill(first.pid.call_one().get(timeout=30), signal.SIGKILL)
    assert until_answered(first) == 10
    assert second.add.call_one(0).get(timeout=30) == 15


def until_answered(counter: Counter) -> int:
    """Call an actor that is being restarted until it replies."""
    until = time.monotonic() + 30.0
    while True:
        try:
            answer: int = counter.add.call_one(0).get(timeout=30)
            return answer
        except (ProcDied, MeshStopped, ActorFailed):
            assert time.monotonic() < until
            counter.initialized.exception(timeout=30)


@pytest.mark.slow
def test_an_actor_too_large_for_the_journal_cannot_be_respawned(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    laden = """
    laden = procs.spawn("laden", Laden, 1, os.urandom(2 << 20))
    laden.add.call(1).get()
    """
    job = taken_over(workers[:1], credentials, tmp_path, SPAWN, laden)
    procs, counters = job.procs["trainers"], job.actor("counter", Counter)
    mesh = job.actor("laden", Laden)
    assert mesh.add.call(1).get(timeout=30).values() == [3, 3]
    os.kill(mesh.slice(procs=0).pid.call_one().get(timeout=30), signal.SIGKILL)
    with pytest.raises(ProcDied):
        mesh.slice(procs=0).add.call_one(1).get(timeout=30)
    with pytest.raises(SpawnError, match=r"'laden'.*1 MiB.*spawn another mesh"):
        mesh.replace(0)
    # The other processes and actors are restored.
    assert counters.add.call(1).get(timeout=30).values() == [11, 16]
    again = procs.spawn("again", Laden, 7, b"")
    assert again.add.call(0).get(timeout=30).values() == [7, 7]


def test_the_output_of_actors_is_forwarded_to_the_successor(
    workers: list[WorkerProcess],
    credentials: Credentials,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    job = taken_over(workers[:1], credentials, tmp_path)
    job.actor("counter", Counter).say.call("heard by whom").get(timeout=30)
    job.procs["trainers"].stop().get(timeout=30)
    shutdown_context().get()
    assert capfd.readouterr().out.count("heard by whom") == 2


def test_a_successor_can_stop_the_job_and_free_its_workers(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    job = taken_over(workers, credentials, tmp_path)
    counters = job.actor("counter", Counter)
    pids = counters.pid.call().get(timeout=30).values()
    job.procs["trainers"].stop().get(timeout=30)
    wait_until_gone(pids)
    shutdown_context().get()
    mesh = attach_to_workers(addresses(workers), credentials=credentials).spawn_procs()
    assert mesh.spawn("counter", Counter, 1).add.call(1).get(timeout=30).values() == [2, 2]


def test_one_worker_is_enough_to_find_the_others(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    with LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, SPAWN) as program:
        program.kill()
    job = take_over([workers[1].address], credentials=credentials)
    assert job.actor("counter", Counter).add.call(1).get(timeout=30).values() == [16] * 4


def test_the_job_continues_without_a_lost_worker(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    with LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, SPAWN) as program:
        # A running program would be notified of the lost host, and exit.
        program.signal(signal.SIGSTOP)
        workers[0].end()
        program.kill()
    job = take_over(addresses(workers), credentials=credentials)
    assert {type(failure) for failure in job.failures} == {HostDied}
    counters = job.actor("counter", Counter)
    assert counters.slice(hosts=1).add.call(1).get(timeout=30).values() == [16, 16]
    with pytest.raises(HostDied):
        counters.slice(hosts=0).add.call(1).get(timeout=30)


def test_the_job_of_a_lost_successor_can_be_taken_over(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    with LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, SPAWN) as program:
        program.kill()
    code = """
    job.actor("counter", Counter).add.call(1).get()
    job.procs["trainers"].spawn("late", Counter, 50).add.call(0).get()
    """
    with LostProgram(tmp_path, addresses(workers), TAKE_OVER, code) as program:
        program.kill()
    job = take_over(addresses(workers), credentials=credentials)
    assert job.generation > 1
    assert job.actor("counter", Counter).add.call(1).get(timeout=30).values() == [17] * 4
    assert job.actor("late", Counter).add.call(1).get(timeout=30).values() == [51] * 4


def test_a_program_that_resumes_after_a_take_over_cannot_call_actors(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    code = """
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    try:
        counters.add.call(1000).get()
    except HostDied:
        os._exit(9)
    os._exit(8)
    """
    with LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, SPAWN, code) as program:
        program.signal(signal.SIGSTOP)
        job = take_over(addresses(workers), credentials=credentials)
        counters = job.actor("counter", Counter)
        assert counters.add.call(1).get(timeout=30).values() == [16] * 4
        program.signal(signal.SIGUSR1)
        program.signal(signal.SIGCONT)
        assert program.wait() == 9, program.errors()
        assert counters.add.call(1).get(timeout=30).values() == [17] * 4


def test_the_job_of_a_live_program_cannot_be_taken_over(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    with (
        LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, SPAWN),
        configured(attach_timeout_s=0.1),
        pytest.raises(TakeOverError, match="which is alive"),
    ):
        take_over(addresses(workers), credentials=credentials)


def test_only_one_of_two_concurrent_successors_wins(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    with LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, SPAWN) as program:
        program.kill()
    attempt = """
    configure(attach_timeout_s=5.0)
    try:
        job = take_over(workers, credentials=Credentials.load(folder + "/controller"))
    except TakeOverError as error:
        print("lost", flush=True)
    else:
        print("won", job.actor("counter", Counter).add.call(1).get(timeout=30).values(), flush=True)
    """
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
        credentials.save(folder / "controller")
    with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        begin = [
            threads.submit(LostProgram, folder, addresses(workers), attempt) for folder in folders
        ]
        programs = [stack.enter_context(one.result()) for one in begin]
        said = sorted(line for program in programs for line in program.said)
    assert said == ["lost", "won [16, 16, 16, 16]"]


def test_a_successor_fails_if_another_has_claimed_the_job(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    with LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, SPAWN) as program:
        program.kill()
    # A rival may be unable to reach the first worker.
    wish = TakeOverRequest("claim", "a rival", None, 0, 60.0).encode()
    there = workers[1].address.removeprefix("tcp://")
    while not request_attach([there], credentials._keys, wish, 30.0)[0]:
        time.sleep(0.05)
    with pytest.raises(TakeOverError, match=r"another successor was first.*a rival has taken"):
        take_over(addresses(workers), credentials=credentials)


def test_only_controller_credentials_of_the_job_can_take_it_over(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    with LostProgram(tmp_path, addresses(workers), ATTACH_AND_HOLD, SPAWN) as program:
        program.kill()
    thief = Credentials.load(tmp_path / "worker")
    with (
        configured(attach_timeout_s=0.1),
        pytest.raises(TakeOverError, match="only credentials of a controller"),
    ):
        take_over(addresses(workers), credentials=thief)
    stranger = Credentials.create()
    with configured(attach_timeout_s=0.1), pytest.raises(TakeOverError, match="job"):
        take_over(addresses(workers), credentials=stranger)


def test_a_take_over_from_workers_without_a_held_job_is_an_error(
    workers: list[WorkerProcess], credentials: Credentials
) -> None:
    with (
        configured(attach_timeout_s=0.1),
        pytest.raises(TakeOverError, match="it holds no job"),
    ):
        take_over(addresses(workers), credentials=credentials)


@pytest.mark.slow
def test_a_job_is_held_only_for_its_grace_period(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    attach = ATTACH_AND_HOLD.replace("orphan_grace_s=60", "orphan_grace_s=0.5")
    code = "print(*counters.pid.call().get().values())\n"
    with LostProgram(tmp_path, addresses(workers), attach, SPAWN, code) as program:
        program.kill()
        wait_until_gone([int(pid) for pid in program.said[0].split()])
    mesh = attach_to_workers(addresses(workers), credentials=credentials).spawn_procs()
    assert mesh.spawn("counter", Counter, 1).add.call(1).get(timeout=30).values() == [2, 2]


def test_invalid_orphan_grace_and_take_over_requests_are_refused(
    workers: list[WorkerProcess], credentials: Credentials
) -> None:
    with pytest.raises(ValueError, match="a successor that has the job"):
        attach_to_workers(["tcp://127.0.0.1:1"], orphan_grace_s=10)
    with pytest.raises(ValueError, match="less than 0"):
        attach_to_workers(["tcp://127.0.0.1:1"], credentials=credentials, orphan_grace_s=-1)
    with pytest.raises(ValueError, match="a single string"):
        take_over("tcp://127.0.0.1:1", credentials=credentials)
    with pytest.raises(ValueError, match="no workers"):
        take_over([], credentials=credentials)
    this_host().spawn_procs()
    with pytest.raises(RuntimeError, match="already runs a job"):
        take_over(addresses(workers), credentials=credentials)
