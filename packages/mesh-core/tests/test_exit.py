"""All ways in which a program can end: exit status, duration, and released resources."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from whole_program import run

if TYPE_CHECKING:
    from pathlib import Path

START = """
    procs = this_host().spawn_procs({"n": 2})
    mesh = procs.spawn("worker", Worker)
    mesh.add.call().get()
"""
# A failing program does not wait for endpoints that never return. Other work delays it, too, but on
# a busy machine by much less than what the endpoints would take.
PROMPT_S = 30.0


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('with a message')", 1),
        ("raise ValueError('of the program')", 1),
        ("procs.stop().get()", 0),
        ("mesh.stop().get()", 0),
        ("shutdown_context().get()", 0),
        ("os._exit(9)", 9),
        ("mesh.sleep.broadcast(0.3)", 0),
        ("call = mesh.sleep.call(0.3)", 0),
        ("asyncio.run(asyncio.wait_for(asyncio.shield(mesh.sleep.call(0.3).as_asyncio()), 5))", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("ctypes.string_at(0)", -11),
        ("os.abort()", -6),
    ],
)
def test_the_exit_status_is_that_of_the_program(tmp_path: Path, rest: str, status: int) -> None:
    ended = run(tmp_path, f"{START}\n    {rest}\n")
    assert ended.status == status, ended.err
    assert ended.seconds < PROMPT_S


@pytest.mark.parametrize(
    ("waiting", "sent", "status"),
    [
        ("mesh.sleep.call(60).get()", signal.SIGINT, -signal.SIGINT),
        ("time.sleep(60)", signal.SIGINT, -signal.SIGINT),
        ("asyncio.run(as_main(asyncio.sleep(60)))", signal.SIGINT, -signal.SIGINT),
        ("asyncio.run(as_main(mesh.sleep.call(60)))", signal.SIGINT, -signal.SIGINT),
        ("mesh.spin.call().get()", signal.SIGINT, -signal.SIGINT),
        ("mesh.sleep.call(60).get()", signal.SIGTERM, -signal.SIGTERM),
        ("mesh.sleep.call(60).get()", signal.SIGKILL, -signal.SIGKILL),
        ("mesh.sleep.call(60).get()", signal.SIGHUP, -signal.SIGHUP),
    ],
)
def test_a_signal_stops_the_program_and_all_its_processes(
    tmp_path: Path, waiting: str, sent: int, status: int
) -> None:
    # asyncio treats a Ctrl-C that arrives while it installs its handler as a plain cancellation.
    ready = "" if "as_main" in waiting else "ready()"
    program = f"""
    async def as_main(call):
        ready()
        return await call
    {START}
    {ready}
    {waiting}
    """
    ended = run(tmp_path, program, send=sent)
    # A shell reports 130 for the first of these.
    assert ended.status == status, ended.err
    assert ended.seconds < PROMPT_S
    if sent == signal.SIGINT and "asyncio" not in waiting:
        assert ended.err.count("KeyboardInterrupt") == 1, ended.err


LATE_NEWS = """
    from mesh_core._actors import agent as _agent
    from mesh_core._supervision import ownership as _ownership
    is_told, is_gone = threading.Event(), threading.Event()
    tell, stopped = _agent.Agent.do_actor_failed, _ownership.Ownership.stopped
    def tell_late(self, *news):
        is_told.set()
        is_gone.wait(10)
        tell(self, *news)
    def stopped_then(self, uid):
        stopped(self, uid)
        if uid == lost._uid:
            is_gone.set()
    _agent.Agent.do_actor_failed, _ownership.Ownership.stopped = tell_late, stopped_then
    lost = this_host().spawn_procs().spawn("lost", Worker)
    lost.fail.broadcast()
    is_told.wait()
"""


def test_a_failure_reported_after_the_exit_began_is_not_lost(tmp_path: Path) -> None:
    ended = run(tmp_path, LATE_NEWS)
    assert ended.status == 1, ended.err
    assert ended.err.count("Unhandled failure") == 1, ended.err


def test_a_failure_in_an_unread_stop_reply_is_not_lost(tmp_path: Path) -> None:
    program = """
    from mesh_core._actors import agent as _agent
    from mesh_core._runtime.runtime import runtime
    is_told, may_hear, has_heard = threading.Event(), threading.Event(), threading.Event()
    tell = _agent.Agent.do_actor_failed
    def tell_late(self, *news):
        is_told.set()
        may_hear.wait(10)
        tell(self, *news)
        has_heard.set()
    _agent.Agent.do_actor_failed = tell_late
    lost = this_host().spawn_procs().spawn("lost", Worker)
    lost.fail.broadcast()
    is_told.wait()
    answer = lost.stop()._parts[0]._reply
    while not runtime().engine.is_ready(answer):
        os.sched_yield()
    may_hear.set()
    has_heard.wait()
    """
    ended = run(tmp_path, program)
    assert ended.status == 1, ended.err
    assert ended.err.count("Unhandled failure") == 1, ended.err


def test_an_exception_in_a_cleanup_at_exit_is_printed(tmp_path: Path) -> None:
    program = """
    class Untidy(Worker):
        def __cleanup__(self, error):
            raise OSError("cannot clean up")
    mesh = this_host().spawn_procs().spawn("untidy", Untidy)
    mesh.add.call_one().get()
    """
    ended = run(tmp_path, program)
    assert ended.status == 0, ended.err
    assert ended.err.count("OSError: cannot clean up") >= 1, ended.err


@pytest.mark.parametrize(
    ("rest", "status"), [("mesh.stop()", 0), ("mesh.fail.broadcast(); mesh.stop()", 1)]
)
def test_an_unawaited_stop_does_not_delay_the_exit(tmp_path: Path, rest: str, status: int) -> None:
    ended = run(tmp_path, f"{START}\n    {rest}\n")
    assert ended.status == status, ended.err
    assert ended.err.count("Unhandled failure") == status, ended.err
    assert ended.seconds < PROMPT_S


def test_a_program_continues_after_a_caught_interrupt(tmp_path: Path) -> None:
    program = f"""
    {START}
    call = mesh.sleep.call(1)
    ready()
    try:
        call.get()
    except KeyboardInterrupt:
        print("caught")
    print(call.get().values(), mesh.add.call().get().values())
    """
    ended = run(tmp_path, program, send=signal.SIGINT)
    assert ended.status == 0, ended.err
    assert "caught\n[None, None] [2, 2]" in ended.out


@pytest.mark.parametrize("hanging", ["self.spin", "self.sleep(1000)"])
@pytest.mark.parametrize(
    ("rest", "status", "limit_s"),
    [
        ("raise OSError", 1, PROMPT_S),
        ("pass", 0, 2 * PROMPT_S),
        pytest.param("sys.exit(3)", 3, 2 * PROMPT_S, marks=pytest.mark.slow),
    ],
)
def test_an_endpoint_that_never_returns_does_not_block_the_exit(
    tmp_path: Path, hanging: str, rest: str, status: int, limit_s: float
) -> None:
    program = f"""
    class Hanging(Worker):
        @endpoint
        def hang(self, begun):
            begun.send(None)
            {hanging}
    begun, receiver = Channel.open()
    call = this_host().spawn_procs().spawn("hanging", Hanging).hang.call(begun)
    receiver.recv().get()
    {rest}
    """
    ended = run(tmp_path, program)
    assert ended.status == status
    assert ended.seconds < limit_s


def test_a_second_interrupt_aborts_a_slow_shutdown(tmp_path: Path) -> None:
    program = f"""
    {START}
    configure(stop_grace_s=60)
    mesh.sleep.broadcast(1000)
    ready()
    """
    # Python itself ignores a signal that arrives while it waits for the program's own threads.
    ended = run(tmp_path, program, send=signal.SIGINT, is_impatient=True)
    assert ended.seconds < PROMPT_S


def test_cleanup_runs_when_the_program_exits(tmp_path: Path) -> None:
    program = """
    class Tidy(Worker):
        def __cleanup__(self, error):
            print("tidied up after", error)
    mesh = this_host().spawn_procs({"n": 2}).spawn("tidy", Tidy)
    mesh.add.call().get()
    local = this_proc().spawn("local", Tidy)
    local.add.call_one().get()
    """
    for rest in ("", "raise ValueError"):
        ended = run(tmp_path, f"{program}\n    {rest}\n")
        lines = [line for line in ended.out.splitlines() if line.endswith("tidied up after None")]
        assert len(lines) == 3, ended.out
        assert "\ntidied up after None" in "\n" + ended.out


def test_cleanup_of_async_actors_in_the_program_process_runs_at_exit(tmp_path: Path) -> None:
    program = """
    class Tidy(Actor):
        @endpoint
        async def add(self):
            return 1
        @endpoint
        def plain(self):
            return 2
        def __cleanup__(self, error):
            print("tidied up")
    local = this_proc().spawn("local", Tidy)
    print(local.add.call_one().get(), local.plain.call_one().get())
    """
    ended = run(tmp_path, program)
    assert ended.status == 0
    assert "tidied up" in ended.out, ended.err


@pytest.mark.parametrize("place", ["controller", "worker"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_pools_work_in_programs_and_actors(
    tmp_path_factory: pytest.TempPathFactory, place: str, method: str
) -> None:
    # The path must be short enough for the address of a socket of the pool.
    folder = tmp_path_factory.mktemp("pool")
    program = f"""
    import multiprocessing
    def work(_=None):
        with multiprocessing.get_context("{method}").Pool(2) as pool:
            return pool.map(abs, [-2, 4, -6])
    class Forker(Worker):
        @endpoint
        def work(self):
            return work()
    if __name__ == "__main__":
        procs = this_host().spawn_procs({{"n": 2}})
        mesh = procs.spawn("forker", Forker)
        for _ in range(2):
            print(work() if "{place}" == "controller" else mesh.slice(n=0).work.call_one().get())
            print(mesh.add.call().get().values())
    """
    ended = run(folder, program, limit_s=60)
    assert ended.status == 0, ended.err
    assert ended.out.count("[2, 4, 6]") == 2, ended.out
    assert "[2, 2]" in ended.out


def test_the_exit_of_a_forked_child_does_not_affect_the_program(tmp_path: Path) -> None:
    program = f"""
    {START}
    for leave in (lambda: os._exit(0), lambda: sys.exit(0)):
        pid = os.fork()
        if pid == 0:
            leave()
        os.waitpid(pid, 0)
        print(mesh.add.call().get().values())
    import subprocess
    subprocess.run(["true"], check=True)
    print(mesh.add.call().get().values())
    """
    ended = run(tmp_path, program)
    assert ended.status == 0, ended.err
    assert "[4, 4]" in ended.out


def test_a_forked_child_can_start_its_own_job(tmp_path: Path) -> None:
    program = f"""
    {START}
    pid = os.fork()
    if pid == 0:
        inner = this_host().spawn_procs({{"n": 2}}).spawn("worker", Worker)
        print("inside:", inner.add.call().get().values())
        sys.exit(0)
    print("status", os.waitpid(pid, 0)[1])
    print("outside:", mesh.add.call().get().values())
    """
    ended = run(tmp_path, program)
    assert ended.status == 0, ended.err
    assert "inside: [1, 1]" in ended.out
    assert "status 0" in ended.out
    assert "outside: [2, 2]" in ended.out


def test_a_program_can_start_mesh_in_threads_and_exit_normally(tmp_path: Path) -> None:
    program = """
    def work():
        mesh = this_host().spawn_procs({"n": 2}).spawn("worker", Worker)
        print(mesh.add.call().get().values())
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    """
    ended = run(tmp_path, program)
    assert ended.status == 0, ended.err
    assert ended.out.count("[1, 1]") == 4


def test_a_failure_terminates_a_program_that_started_mesh_in_a_thread(tmp_path: Path) -> None:
    program = """
    def work():
        this_host().spawn_procs().spawn("worker", Worker).fail.broadcast()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    time.sleep(60)
    """
    ended = run(tmp_path, program)
    assert ended.status == 1
    assert "Unhandled failure" in ended.err
    assert ended.seconds < PROMPT_S
