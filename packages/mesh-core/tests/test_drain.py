"""A host moves to another machine: its actors keep their state, and no call fails."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from host_recorder import wait_until_gone
from worker_fixtures import attached
from worker_fixtures import fresh_job as fresh_job
from worker_fixtures import workers as workers
from workers import WorkerProcess

from mesh_core import (
    Actor,
    Channel,
    DrainFailed,
    HostDied,
    HostMesh,
    MeshFailure,
    MeshStopped,
    Port,
    ProcDied,
    add_standby_workers,
    attach_to_workers,
    concurrent_endpoint,
    configured,
    endpoint,
    this_host,
)
from mesh_core._calls.port_holders import holders
from mesh_core._hosts import state_transfer
from mesh_core.testing import wait_until

LIMIT_S = 30.0

pytestmark = pytest.mark.usefixtures("fresh_job")


class Ledger(Actor):
    """Records every call that it executes, as a part of its state."""

    def __init__(self) -> None:
        self.executed: list[tuple[str, int]] = []

    @endpoint
    def add(self, sender: str, number: int) -> int:
        """Record a call."""
        self.executed.append((sender, number))
        return number

    @endpoint
    def pid(self) -> int:
        """Return the process in which the actor runs."""
        return os.getpid()

    @endpoint
    def all(self) -> list[tuple[str, int]]:
        """Return the executed calls, in order."""
        return self.executed

    @endpoint
    def sleep(self) -> None:
        """Never return."""
        signal.pause()


class AsyncLedger(Actor):
    """Like `Ledger`, on an event loop."""

    def __init__(self) -> None:
        self.executed: list[tuple[str, int]] = []

    @endpoint
    async def add(self, sender: str, number: int) -> int:
        """Record a call."""
        self.executed.append((sender, number))
        return number

    @concurrent_endpoint
    async def all(self) -> list[tuple[str, int]]:
        """Return the executed calls, in order."""
        return self.executed


class Caller(Actor):
    """Calls other actors from another process."""

    def __init__(self, ledgers: Any) -> None:
        self.ledgers = ledgers
        self.number = 0

    @endpoint
    def run(self, name: str, seconds: float) -> int:
        """Call all ledgers in a loop, and send messages without replies; return how many."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.number += 1
            self.ledgers.add.call(name, self.number).get(timeout=LIMIT_S)
            self.number += 1
            self.ledgers.add.broadcast(name, self.number)
        return self.number

    @endpoint
    def ask_back(self, other: Any, value: int) -> int:
        """Call another actor, which calls this process again."""
        result: int = other.echo.call_one(value).get(timeout=LIMIT_S)
        return result


class Relay(Actor):
    """Calls an actor on the host that moves while a call of that host waits."""

    def __init__(self, target: Any) -> None:
        self.target = target

    @endpoint
    def echo(self, value: int) -> int:
        """Call the target, and return the value."""
        result: int = self.target.add.call_one("relay", value).get(timeout=LIMIT_S)
        return result


class Sleeper(Actor):
    """Runs until a file exists."""

    @endpoint
    def sleep(self, started: Port[None], path: str) -> str:
        """Return once the file exists."""
        started.send(None)
        while not os.path.exists(path):
            time.sleep(0.01)
        return "woken"


class Unmovable(Actor):
    """Has an attribute that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    @endpoint
    def locked(self) -> bool:
        """Return whether the lock is held."""
        return self.lock.locked()


class Owner(Actor):
    """Owns an actor in another process of the same host, and an actor on another host."""

    def __init__(self) -> None:
        self.failures_handled = 0

    @endpoint
    def spawn(self, other: HostMesh) -> tuple[Any, Any]:
        """Start both."""
        self.near = this_host().spawn_procs().spawn("near", Ledger)
        self.far = other.spawn_procs().spawn("far", Ledger, restart="permanent")
        return self.near, self.far

    @endpoint
    def add(self, number: int) -> None:
        """Call both."""
        for mesh in (self.near, self.far):
            mesh.add.call_one("owner", number).get(timeout=LIMIT_S)

    @endpoint
    def handled(self) -> int:
        """Return how many failures the owner has handled."""
        return self.failures_handled

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures_handled += isinstance(failure.error, ProcDied)
        return True


class Sender(Actor):
    """Holds a port of a channel of the program."""

    def __init__(self, port: Port[int]) -> None:
        self.port = port

    @endpoint
    def send(self, value: int) -> None:
        """Send a value."""
        self.port.send(value)

    @endpoint
    def drop(self) -> None:
        """Release the port."""
        del self.port


class Large(Actor):
    """Has a state with large parts."""

    def __init__(self, sizes: list[int]) -> None:
        self.parts = [random.Random(size).randbytes(size) for size in sizes]

    @endpoint
    def checksums(self) -> list[int]:
        """Return the checksum of each part."""
        return [zlib.crc32(part) for part in self.parts]


class Configured(Actor):
    """Restores an attribute that cannot be pickled."""

    def __init__(self) -> None:
        self.value = 1
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
        self.lock = threading.Lock()

    @endpoint
    def increase(self) -> int:
        """Increase the value."""
        with self.lock:
            self.value += 1
        return self.value


def test_actors_continue_with_their_state_on_another_machine(
    workers: list[WorkerProcess],
) -> None:
    hosts = attached(workers[:2])
    procs = hosts.spawn_procs({"procs": 2})
    plain = procs.spawn("plain", Ledger)
    on_loop = procs.spawn("on_loop", AsyncLedger)
    caller = procs.slice(hosts=0, procs=0).spawn("caller", Caller, plain)
    for mesh in (plain, on_loop):
        mesh.add.call("before", 1).get(timeout=LIMIT_S)
    pids = plain.pid.call().get(timeout=LIMIT_S).values()
    old = workers[1].sessions()
    hosts.drain(1, workers[2].address, timeout=LIMIT_S)
    for mesh in (plain, on_loop):
        mesh.add.call("after", 2).get(timeout=LIMIT_S)
        for executed in mesh.all.call().get(timeout=LIMIT_S).values():
            assert executed == [("before", 1), ("after", 2)]
    assert caller.run.call_one("caller", 0.0).get(timeout=LIMIT_S) == 0
    moved = plain.pid.call().get(timeout=LIMIT_S).values()
    assert moved[:2] == pids[:2]
    assert not set(moved[2:]) & set(pids)
    assert hosts.host_epoch > 0
    # The old machine leaves the job.
    wait_until_gone([*old, *pids[2:]])
    # Processes that are spawned later run on the new machine, too.
    more = hosts.slice(hosts=1).spawn_procs().spawn("more", Ledger)
    assert more.add.call_one("more", 1).get(timeout=LIMIT_S) == 1


def test_a_standby_worker_takes_over_and_the_old_worker_can_be_used_again(
    workers: list[WorkerProcess],
) -> None:
    hosts = attached(workers[:2], standby=1)
    mesh = hosts.spawn_procs().spawn("ledger", Ledger)
    mesh.add.call("a", 1).get(timeout=LIMIT_S)
    hosts.drain(0, timeout=LIMIT_S)
    with pytest.raises(HostDied, match="no standby worker is left"):
        hosts.drain(0)
    add_standby_workers(hosts, [workers[0].address])
    hosts.drain(0, timeout=LIMIT_S)
    assert mesh.all.call().get(timeout=LIMIT_S).values() == [[("a", 1)]]


def drain_under_load(workers: list[WorkerProcess], drains: int) -> list[float]:
    """Move a host repeatedly while others call its actors; check that each call ran once."""
    hosts = attached(workers[:2])
    procs = hosts.spawn_procs({"procs": 2})
    moving, other = procs.slice(hosts=1), procs.slice(hosts=0)
    meshes = {"plain": moving.spawn("plain", Ledger), "on_loop": moving.spawn("loop", AsyncLedger)}
    callers = {name: other.spawn(f"call_{name}", Caller, mesh) for name, mesh in meshes.items()}
    sent: Counter[str] = Counter()
    is_over = threading.Event()
    errors: list[Exception] = []

    def call(name: str) -> None:
        try:
            while not is_over.is_set():
                sent[name] += 1
                meshes[name].add.call("program", sent[name]).get(timeout=LIMIT_S)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(name,)) for name in meshes]
    for thread in threads:
        thread.start()
    running = {}
    numbers = {name: [0, 0] for name in meshes}
    times = []
    spare = workers[2]
    used = workers[1]
    try:
        for _ in range(drains):
            running = {
                name: [
                    mesh.slice(procs=rank).run.call_one(f"{name}{rank}", 0.3) for rank in range(2)
                ]
                for name, mesh in callers.items()
            }
            began = time.monotonic()
            hosts.drain(1, spare.address, timeout=LIMIT_S)
            times.append(time.monotonic() - began)
            used, spare = spare, used
            for name, futures in running.items():
                numbers[name] = [future.get(timeout=LIMIT_S) for future in futures]
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not errors
    for name, mesh in meshes.items():
        expected = {
            "program": sent[name],
            f"{name}0": numbers[name][0],
            f"{name}1": numbers[name][1],
        }
        for executed in mesh.all.call().get(timeout=LIMIT_S).values():
            for sender, last in expected.items():
                got = [number for who, number in executed if who == sender]
                assert got == list(range(1, last + 1)), f"{sender} to {name}"
    return times


def test_no_call_is_lost_or_executed_twice_or_reordered(workers: list[WorkerProcess]) -> None:
    drain_under_load(workers, 4)


def test_attached_hosts_become_standby_workers(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:3])
    serving, spare = hosts.slice(hosts=slice(2)), hosts.slice(hosts=2)
    mesh = serving.spawn_procs().spawn("ledger", Ledger)
    spare.spawn_procs().initialized.get(timeout=LIMIT_S)
    with pytest.raises(ValueError, match="one of the hosts that standby workers should replace"):
        add_standby_workers(serving, serving.slice(hosts=1))
    add_standby_workers(serving, spare)
    mesh.add.call("program", 1).get(timeout=LIMIT_S)
    serving.drain(1, timeout=LIMIT_S)
    for executed in mesh.all.call().get(timeout=LIMIT_S).values():
        assert executed == [("program", 1)]


def test_a_call_that_waits_for_a_held_message_completes(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:2])
    moving = hosts.slice(hosts=1).spawn_procs({"procs": 2})
    target = moving.slice(procs=0).spawn("target", Ledger)
    relay = hosts.slice(hosts=0).spawn_procs().spawn("relay", Relay, target)
    caller = moving.slice(procs=1).spawn("caller", Caller, target)
    sent = 0
    for epoch, worker in ((1, workers[2]), (2, workers[1])):
        is_over = threading.Event()

        def call(is_over: threading.Event = is_over) -> None:
            nonlocal sent
            while not is_over.is_set():
                sent += 1
                assert caller.ask_back.call_one(relay, sent).get(timeout=LIMIT_S) == sent

        thread = threading.Thread(target=call)
        thread.start()
        hosts.drain(1, worker.address, timeout=LIMIT_S)
        is_over.set()
        thread.join()
        assert hosts.slice(hosts=1).host_epoch == epoch
    (executed,) = target.all.call().get(timeout=LIMIT_S).values()
    assert executed == [("relay", number) for number in range(1, sent + 1)]


def test_a_drain_blocked_by_a_long_endpoint_names_it_and_changes_nothing(
    workers: list[WorkerProcess], tmp_path: Any
) -> None:
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs().spawn("sleeper", Sleeper)
    port, started = Channel[None].open()
    pending = mesh.sleep.call_one(port, str(tmp_path / "wake"))
    started.recv().get(timeout=LIMIT_S)
    with pytest.raises(DrainFailed, match=r"actor sleeper \(rank 0\) runs sleep"):
        hosts.drain(0, workers[1].address, timeout=0.3)
    (tmp_path / "wake").touch()
    assert pending.get(timeout=LIMIT_S) == "woken"
    hosts.drain(0, workers[2].address, timeout=LIMIT_S)


def meshes_on(worker: WorkerProcess) -> list[str]:
    """Return the meshes of the processes of a worker, one of `kept` and `brief` for each."""
    names = []
    for pid in worker.descendants():
        with suppress(OSError):
            names.append(Path(f"/proc/{pid}/comm").read_text())
    return [mesh for name in sorted(names) for mesh in ("kept", "brief") if name.startswith(mesh)]


def test_processes_start_on_the_new_machine_while_the_host_still_works(
    workers: list[WorkerProcess], tmp_path: Path
) -> None:
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs(name="kept").spawn("sleeper", Sleeper)
    brief = hosts.spawn_procs(name="brief")
    port, started = Channel[None].open()
    pending = mesh.sleep.call_one(port, str(tmp_path / "wake"))
    started.recv().get(timeout=LIMIT_S)
    brief.initialized.get(timeout=LIMIT_S)
    with ThreadPoolExecutor(1) as thread:
        drained = thread.submit(hosts.drain, 0, workers[1].address, timeout=LIMIT_S)
        wait_until(lambda: meshes_on(workers[1]) == ["brief", "kept"], LIMIT_S)
        # A process that is stopped during the move does not move.
        brief.stop().get(timeout=LIMIT_S)
        (tmp_path / "wake").touch()
        drained.result()
    assert pending.get(timeout=LIMIT_S) == "woken"
    wait_until(lambda: meshes_on(workers[1]) == ["kept"], LIMIT_S)
    (tmp_path / "wake").unlink()
    pending = mesh.sleep.call_one(port, str(tmp_path / "wake"))
    with pytest.raises(DrainFailed, match="runs sleep"):
        hosts.drain(0, workers[2].address, timeout=0.3)
    wait_until(lambda: meshes_on(workers[2]) == [], LIMIT_S)
    (tmp_path / "wake").touch()
    assert pending.get(timeout=LIMIT_S) == "woken"


def test_a_drain_blocked_by_an_unmovable_actor_names_it_and_changes_nothing(
    workers: list[WorkerProcess],
) -> None:
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs().spawn("fixed", Unmovable)
    mesh.locked.call().get(timeout=LIMIT_S)
    with pytest.raises(DrainFailed, match=r"continues to serve: .*lock: .*cannot pickle"):
        hosts.drain(0, workers[1].address, timeout=LIMIT_S)
    mesh.locked.call().get(timeout=LIMIT_S)


def test_an_actor_moves_with_the_meshes_that_it_owns(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:2])
    owner = hosts.slice(hosts=0).spawn_procs().spawn("owner", Owner)
    near, far = owner.spawn.call_one(hosts.slice(hosts=1)).get(timeout=LIMIT_S)
    for number, (host, worker) in enumerate([(0, workers[2]), (1, workers[0])]):
        owner.add.call_one(number).get(timeout=LIMIT_S)
        hosts.drain(host, worker.address, timeout=LIMIT_S)
    owner.add.call_one(2).get(timeout=LIMIT_S)
    for mesh in (near, far):
        (executed,) = mesh.all.call().get(timeout=LIMIT_S).values()
        assert executed == [("owner", number) for number in range(3)]
    # The owner still receives failures, restarts actors, and stops all of them when it ends.
    for mesh in (far, near):
        os.kill(mesh.pid.call_one().get(timeout=LIMIT_S), signal.SIGKILL)
    wait_until(lambda: owner.handled.call_one().get(timeout=LIMIT_S) == 1, LIMIT_S)
    wait_until(lambda: far.all.call_one().exception(timeout=LIMIT_S) is None, LIMIT_S)
    assert far.all.call_one().get(timeout=LIMIT_S) == []
    owner.stop().get(timeout=LIMIT_S)
    with pytest.raises(MeshStopped):
        far.all.call_one().get(timeout=LIMIT_S)


def test_a_port_in_the_state_works_after_the_move(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:1])
    port, receiver = Channel[int].open()
    mesh = hosts.spawn_procs().spawn("sender", Sender, port)
    mesh.send.call_one(1).get(timeout=LIMIT_S)
    hosts.drain(0, workers[1].address, timeout=LIMIT_S)
    mesh.send.call_one(2).get(timeout=LIMIT_S)
    assert [receiver.recv().get(timeout=LIMIT_S) for _ in range(2)] == [1, 2]
    # The process on the old machine holds the port no longer.
    mesh.drop.call_one().get(timeout=LIMIT_S)
    wait_until(lambda: not any(holders.values()), LIMIT_S)


def test_a_large_state_moves(workers: list[WorkerProcess]) -> None:
    """More bytes than a piece, and more parts than a message."""
    sizes = [*range(100_000, 100_300), 40 << 20]
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs({"procs": 2}).spawn("large", Large, sizes)
    before = mesh.checksums.call().get(timeout=LIMIT_S).values()
    hosts.drain(0, workers[1].address, timeout=LIMIT_S)
    assert mesh.checksums.call().get(timeout=LIMIT_S).values() == before


def test_a_state_too_large_for_the_memory_of_the_program_is_not_moved(
    workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_transfer, "available_bytes", lambda: 1 << 20)
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs().spawn("large", Large, [2 << 20])
    before = mesh.checksums.call_one().get(timeout=LIMIT_S)
    with pytest.raises(DrainFailed, match="continues to serve: its state of 2 MiB passes through"):
        hosts.drain(0, workers[1].address, timeout=LIMIT_S)
    assert mesh.checksums.call_one().get(timeout=LIMIT_S) == before


def test_getstate_and_setstate_handle_unpicklable_attributes(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs().spawn("configured", Configured)
    assert mesh.increase.call_one().get(timeout=LIMIT_S) == 2
    hosts.drain(0, workers[1].address, timeout=LIMIT_S)
    assert mesh.increase.call_one().get(timeout=LIMIT_S) == 3


def test_a_death_after_the_move_is_reported_and_the_rank_is_replaced(
    workers: list[WorkerProcess],
) -> None:
    hosts = attached(workers[:1])
    procs = hosts.spawn_procs({"procs": 2})
    mesh = procs.spawn("ledger", Ledger)
    mesh.add.call("a", 1).get(timeout=LIMIT_S)
    hosts.drain(0, workers[1].address, timeout=LIMIT_S)
    with configured(failure_grace_s=60.0):
        pending = mesh.slice(procs=1).sleep.call_one()
        procs.kill(1)
        with pytest.raises(ProcDied):
            pending.get(timeout=LIMIT_S)
        procs.replace(1)
        assert mesh.all.call().get(timeout=LIMIT_S).values() == [[("a", 1)], []]


def test_a_host_moves_while_its_worker_shuts_down(workers: list[WorkerProcess]) -> None:
    with WorkerProcess("--leave-grace", "60") as leaving:
        hosts = attach_to_workers([leaving.address])
        mesh = hosts.spawn_procs().spawn("ledger", Ledger)
        mesh.add.call("a", 1).get(timeout=LIMIT_S)
        leaving.send(signal.SIGTERM)
        hosts.drain(0, workers[0].address, timeout=LIMIT_S)
        assert leaving.wait() == 0
        assert mesh.all.call().get(timeout=LIMIT_S).values() == [[("a", 1)]]


def test_a_standby_worker_can_be_used_after_a_failed_drain(
    workers: list[WorkerProcess], tmp_path: Any
) -> None:
    hosts = attached(workers[:2], standby=1)
    mesh = hosts.spawn_procs().spawn("sleeper", Sleeper)
    port, started = Channel[None].open()
    pending = mesh.sleep.call_one(port, str(tmp_path / "wake"))
    started.recv().get(timeout=LIMIT_S)
    for _ in range(2):
        with pytest.raises(DrainFailed, match="did not become idle"):
            hosts.drain(0, timeout=0.2)
    (tmp_path / "wake").touch()
    assert pending.get(timeout=LIMIT_S) == "woken"
    hosts.drain(0, timeout=LIMIT_S)
    assert hosts.host_epoch == 3


def test_the_host_of_the_program_cannot_move() -> None:
    with pytest.raises(RuntimeError, match="the program runs on it"):
        this_host().drain(0)


def test_a_host_that_has_died_cannot_move(workers: list[WorkerProcess]) -> None:
    with configured(heartbeat_s=0.2):
        hosts = attached(workers[:1])
        mesh = hosts.spawn_procs().spawn("ledger", Ledger)
        mesh.pid.call().get(timeout=LIMIT_S)
        workers[0].power_off()
        with pytest.raises(HostDied):
            mesh.pid.call().get(timeout=LIMIT_S)
        with pytest.raises(HostDied, match="is dead"):
            hosts.drain(0, workers[1].address)
