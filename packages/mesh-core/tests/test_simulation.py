"""Users' programs in a simulated cluster: unchanged actors, virtual time, faults by seed."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import planted_races
import pytest

from mesh_core import (
    Actor,
    Channel,
    HostDied,
    ProcDied,
    as_completed,
    endpoint,
    this_host,
)
from mesh_core._simulation import scheduler
from mesh_core.testing import (
    LocalProcs,
    SimulatedCluster,
    SimulatedFaults,
    SimulatedProgramFailed,
    SimulationNotRepeatable,
    SimulationStuck,
    kill_proc,
    local_procs,
    mesh_simulation,
    simulated,
)

__all__ = ["local_procs"]


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.count = start

    @endpoint
    def add(self, n: int) -> int:
        self.count += n
        return self.count

    @endpoint
    def sleep(self, seconds: float) -> float:
        start = time.monotonic()
        time.sleep(seconds)
        return time.monotonic() - start

    @endpoint
    def exit(self, status: int) -> None:
        print("about to exit")
        os._exit(status)

    @endpoint
    def kill(self, number: int) -> None:
        os.kill(os.getpid(), number)

    @endpoint
    def fail(self) -> None:
        raise ValueError("planted")

    @endpoint
    def pid(self) -> int:
        return os.getpid()


OVER = threading.Event()


class Busy(Actor):
    @endpoint
    def spin(self) -> None:
        # A simulation cannot end this thread.
        while not OVER.is_set():
            pass


class Asker(Actor):
    @endpoint
    async def ask(self, counters: Any, n: int) -> list[int]:
        values = await counters.add.call(n)
        await asyncio.sleep(1.0)
        answers: list[int] = list(values.values())
        return answers


def test_actors_run_unchanged() -> None:
    with simulated(seed=1):
        counters = this_host().spawn_procs({"gpus": 4}).spawn("counters", Counter, 5)
        assert counters.add.call(1).get().values() == [6, 6, 6, 6]
        assert counters.slice(gpus=2).add.call_one(2).get() == 8
        assert len(set(counters.pid.call().get().values())) == 4


def test_actors_run_on_simulated_hosts() -> None:
    with simulated(hosts=3, seed=2) as cluster:
        counters = cluster.hosts.spawn_procs({"gpus": 2}).spawn("counters", Counter)
        assert counters.add.call(1).get().values() == [1] * 6
        assert counters.slice(hosts=1).add.call(1).get().values() == [2, 2]


def test_async_endpoints_and_an_async_program() -> None:
    async def program() -> list[int]:
        counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter)
        asker = this_host().spawn_procs().spawn("asker", Asker)
        answers: list[int] = await asker.ask.call_one(counters, 3)
        return answers

    with simulated(seed=3) as cluster:
        assert asyncio.run(program()) == [3, 3]
        assert cluster.now_s >= 1.0


def test_time_is_virtual() -> None:
    begun = time.monotonic()
    with simulated(seed=4) as cluster:
        counter = this_host().spawn_procs().spawn("counter", Counter)
        assert 1000.0 <= counter.sleep.call_one(1000.0).get() < 1001.0
        assert cluster.now_s >= 1000.0
    assert time.monotonic() - begun < 100.0


def _trace(seed: int) -> tuple[int, float, tuple[str, ...]]:
    faults = SimulatedFaults(kills=2, within_s=1.0)
    with simulated(hosts=2, seed=seed, faults=faults) as cluster:
        mesh = cluster.hosts.spawn_procs({"gpus": 2})
        counters = mesh.spawn("counters", Counter, restart="permanent")
        for _ in range(5):
            try:
                counters.add.call(1).get()
            except ProcDied:
                time.sleep(0.1)
    return cluster.trace_hash, cluster.now_s, cluster.events


def test_equal_seeds_have_equal_traces() -> None:
    first = [_trace(seed) for seed in range(6)]
    assert [_trace(seed) for seed in range(6)] == first
    assert len({one[0] for one in first}) == 6


def test_queues_threads_and_executors_work() -> None:
    class Worker(Actor):
        @endpoint
        def work(self) -> list[int]:
            results: queue.Queue[int] = queue.Queue(maxsize=1)
            threads = [threading.Thread(target=results.put, args=(n,)) for n in range(3)]
            for thread in threads:
                thread.start()
            got = sorted(results.get(timeout=5) for _ in threads)
            for thread in threads:
                thread.join()
            with ThreadPoolExecutor(2) as pool:
                got += list(pool.map(abs, [-7, -8]))
            return got

    with simulated(seed=5):
        worker = this_host().spawn_procs().spawn("worker", Worker)
        assert worker.work.call_one().get() == [0, 1, 2, 7, 8]


def test_futures_are_completed_in_virtual_time() -> None:
    with simulated(seed=6):
        counters = this_host().spawn_procs({"gpus": 3}).spawn("counters", Counter)
        calls = {counters.slice(gpus=rank).sleep.call_one(3.0 - rank): rank for rank in range(3)}
        assert [calls[done] for done in as_completed(calls)] == [2, 1, 0]
        items = counters.add.map([1, 2, 3])
        assert len(list(items)) == 3


def test_channels_carry_values() -> None:
    class Sender(Actor):
        @endpoint
        def send(self, port: Any) -> None:
            for n in range(3):
                port.send(n)

    with simulated(seed=7):
        port, receiver = Channel[int].open()
        this_host().spawn_procs().spawn("sender", Sender).send.broadcast(port)
        assert [receiver.recv().get() for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_is_reported(number: int) -> None:
    with simulated(seed=8):
        counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter)
        with pytest.raises(ProcDied) as died:
            counters.slice(gpus=1).kill.call_one(number).get()
        assert died.value.signal == number
        assert died.value.rank == 1
        assert counters.slice(gpus=0).add.call_one(1).get() == 1


def test_an_exit_status_is_reported() -> None:
    with simulated(seed=9):
        counter = this_host().spawn_procs().spawn("counter", Counter)
        with pytest.raises(ProcDied) as died:
            counter.exit.call_one(3).get()
        assert died.value.exit_code == 3
    assert died.value.log_tail == ("about to exit",)


def test_processes_are_killed_and_restarted() -> None:
    with simulated(seed=10):
        procs = this_host().spawn_procs({"gpus": 2})
        counters = procs.spawn("counters", Counter, restart="permanent")
        counters.add.call(1).get()
        kill_proc(procs, 1)
        while True:
            try:
                values = list(counters.add.call(1).get().values())
                break
            except ProcDied:
                time.sleep(0.01)
        assert values in ([2, 1], [3, 1])


def test_a_lost_host_is_noticed() -> None:
    with simulated(hosts=2, seed=11) as cluster:
        counters = cluster.hosts.spawn_procs().spawn("counters", Counter)
        counters.add.call(1).get()
        call = counters.slice(hosts=1).sleep.call_one(60.0)
        cluster.kill_host(1)
        with pytest.raises(HostDied):
            call.get()
        assert counters.slice(hosts=0).add.call_one(1).get() == 2


def test_a_short_partition_only_delays_calls() -> None:
    with simulated(hosts=2, seed=12) as cluster:
        counters = cluster.hosts.spawn_procs().spawn("counters", Counter)
        counters.add.call(1).get()
        start = cluster.now_s
        cluster.partition([1], 1.0)
        assert counters.add.call(1).get().values() == [2, 2]
        assert cluster.now_s - start >= 1.0


def test_an_endless_wait_is_reported_with_its_location() -> None:
    def waits_for_nothing() -> None:
        threading.Event().wait()

    with pytest.raises(SimulationStuck, match="waits_for_nothing"), simulated(seed=13):
        waits_for_nothing()


def test_an_unhandled_failure_ends_the_program() -> None:
    def program() -> None:
        this_host().spawn_procs().spawn("counter", Counter).fail.broadcast()
        time.sleep(60.0)

    with pytest.raises(SimulatedProgramFailed) as failed, simulated(seed=14):
        program()
    assert isinstance(failed.value.__cause__.__cause__, ValueError)  # type: ignore[union-attr]


def test_a_lost_host_is_replaced() -> None:
    with simulated(hosts=2, seed=18) as cluster:
        counters = cluster.hosts.spawn_procs().spawn("counters", Counter)
        counters.add.call(1).get()
        cluster.kill_host(1)
        with pytest.raises(HostDied):
            counters.add.call(1).get()
        cluster.hosts.replace(1)
        assert counters.add.call(1).get().values() in ([2, 1], [3, 1])
        assert cluster.now_s >= 3.0


def test_a_standby_host_replaces_a_lost_host() -> None:
    with simulated(hosts=2, seed=20, standby=1) as cluster:
        counters = cluster.hosts.spawn_procs().spawn("counters", Counter, restart="permanent")
        counters.add.call(1).get()
        cluster.kill_host(1)
        while True:
            try:
                values = list(counters.add.call(1).get().values())
                break
            except (HostDied, ProcDied):
                time.sleep(0.1)
        assert values[1] == 1


def test_a_stopped_process_continues() -> None:
    with simulated(seed=19) as cluster:
        procs = this_host().spawn_procs()
        counter = procs.spawn("counter", Counter)
        counter.add.call_one(1).get()
        pid = kill_proc(procs, 0, signal.SIGSTOP)
        call = counter.add.call_one(1)
        with pytest.raises(TimeoutError):
            call.get(timeout=5.0)
        os.kill(pid, signal.SIGCONT)
        assert call.get() == 2
        assert cluster.now_s >= 5.0


def test_simulations_cannot_be_nested() -> None:
    with simulated(seed=15), pytest.raises(RuntimeError, match="already"):
        simulated(seed=16).__enter__()


def test_a_real_job_continues_during_a_simulation(local_procs: LocalProcs) -> None:
    real = local_procs().spawn("real", Counter)
    real.add.call_one(1).get()
    with simulated(seed=17):
        imagined = this_host().spawn_procs().spawn("imagined", Counter)
        assert imagined.add.call_one(10).get() == 10
    assert real.add.call_one(1).get() == 2
    assert real.pid.call_one().get() != os.getpid()


def test_other_threads_of_the_process_keep_running() -> None:
    ended = threading.Event()
    waits: list[bool] = []

    def wait_often() -> None:
        while not ended.is_set():
            # A lock of a simulation would refuse this thread.
            waits.append(threading.Event().wait(0.0001))

    thread = threading.Thread(target=wait_often)
    thread.start()
    for seed in range(5):
        with simulated(seed=seed):
            counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter)
            counters.add.call(1).get()
    ended.set()
    thread.join()
    assert waits
    assert not any(waits)


def test_a_signal_interrupts_a_program_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_TURN_S", 0.2)

    def raise_timeout(_number: int, _frame: object) -> None:
        raise TimeoutError("the time is over")

    def program() -> None:
        busy = this_host().spawn_procs().spawn("busy", Busy)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        busy.spin.call_one().get()

    before = signal.signal(signal.SIGALRM, raise_timeout)
    try:
        with pytest.raises(TimeoutError, match="the time is over"), simulated(seed=22):
            program()
    finally:
        OVER.set()
        signal.signal(signal.SIGALRM, before)


def test_a_test_is_run_under_each_seed() -> None:
    ran: list[int] = []

    @mesh_simulation(seeds=[3, 1, 4], faults=None, processes=1)
    def test(cluster: SimulatedCluster) -> None:
        ran.append(cluster.seed)

    test()
    assert ran == [3, 1, 4]


def test_coroutines_are_run_under_each_seed() -> None:
    @mesh_simulation(seeds=2, faults=None)
    async def test() -> None:
        counter = this_host().spawn_procs().spawn("counter", Counter)
        assert await counter.add.call_one(1) == 1

    test()


def test_an_empty_set_of_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="no seed"):
        mesh_simulation(seeds=0)


def test_a_failure_that_is_not_repeatable_is_reported_as_such() -> None:
    parent = os.getpid()

    @mesh_simulation(seeds=4, faults=None, processes=2)
    def test() -> None:
        # The forked processes have another parent.
        assert os.getppid() != parent, "in a forked process"

    with pytest.raises(SimulationNotRepeatable, match="in a forked process"):
        test()


FAULTS = SimulatedFaults(kills=0, within_s=3.0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("race", planted_races.RACES, ids=lambda race: race.__name__)
def test_planted_races_are_found(race: Callable[[bool], None]) -> None:
    @mesh_simulation(seeds=500, faults=FAULTS)
    def test() -> None:
        race(False)

    with pytest.raises(AssertionError) as failed:
        test()
    (note,) = [one for one in failed.value.__notes__ if one.startswith("seed ")]
    seed = int(note.split()[1].rstrip(","))

    @mesh_simulation(seeds=[seed], faults=FAULTS)
    def again() -> None:
        race(False)

    with pytest.raises(AssertionError) as repeated:
        again()
    assert repeated.value.__notes__ == failed.value.__notes__
