"""Large payloads hold shared memory only as long as a process can still read them."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mesh_core import Actor, MeshStopped, ProcDied, endpoint, this_host
from mesh_core.testing import shared_bytes_in_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import ProcMesh

LEN = 1 << 22
LIMIT_S = 20.0


class Store(Actor):
    @endpoint
    def take(self, array: np.ndarray) -> int:
        return len(array)

    @endpoint
    def give(self, count: int) -> np.ndarray:
        return np.ones(count, np.uint8)

    @endpoint
    def bytes_in_use(self) -> int:
        return shared_bytes_in_use()

    @endpoint
    def die(self) -> None:
        os._exit(1)


def returns_to(before: int, count: Callable[[], int]) -> bool:
    """Wait for a count that other processes reduce; memory of other tests may be freed as well."""
    until = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while count() > before and time.monotonic() < until:
        pause.wait(0.01)
    return count() <= before


def test_the_memory_of_arguments_is_released_when_the_callee_drops_them(procs: ProcMesh) -> None:
    store = procs.spawn("store", Store)
    array = np.ones(LEN, np.uint8)
    before = shared_bytes_in_use()
    for _ in range(5):
        assert set(store.take.call(array).get().values()) == {LEN}
    assert returns_to(before, shared_bytes_in_use)


def test_the_memory_of_unread_results_is_released(procs: ProcMesh) -> None:
    store = procs.spawn("store", Store)
    before = max(store.bytes_in_use.call().get().values())
    for _ in range(5):
        store.give.call(LEN)
        store.give.call(LEN).get()
    assert returns_to(before, lambda: max(store.bytes_in_use.call().get().values()))


def test_the_memory_of_results_of_cancelled_calls_is_released(procs: ProcMesh) -> None:
    store = procs.spawn("store", Store)
    before = max(store.bytes_in_use.call().get().values())
    futures = [store.give.call(LEN) for _ in range(5)]
    while futures:
        futures.pop().cancel()
    assert returns_to(before, lambda: max(store.bytes_in_use.call().get().values()))


def test_the_memory_of_arguments_for_a_stopped_actor_is_released(procs: ProcMesh) -> None:
    store = procs.spawn("store", Store)
    held = procs.spawn("holder", Holder, store)
    one = held.slice(gpus=0)
    before = one.bytes_in_use.call_one().get()
    store.stop().get()
    with pytest.raises(MeshStopped):
        one.pass_on.call_one(LEN).get()
    assert returns_to(before, lambda: one.bytes_in_use.call_one().get())


class Holder(Store):
    def __init__(self, store: Store) -> None:
        self.store = store

    @endpoint
    def ready(self) -> None:
        pass

    @endpoint
    def pass_on(self, count: int) -> None:
        self.store.take.call(np.ones(count, np.uint8)).get()


def test_the_memory_of_arguments_for_a_dead_process_is_released() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    store = procs.spawn("store", Store)
    one = store.slice(gpus=0)
    before = shared_bytes_in_use()
    with pytest.raises(ProcDied):
        one.die.call_one().get()
    for _ in range(3):
        with pytest.raises(ProcDied):
            one.take.call_one(np.ones(LEN, np.uint8)).get()
    assert returns_to(before, shared_bytes_in_use)
    procs.stop().get()


def test_a_forked_child_keeps_received_arrays(procs: ProcMesh) -> None:
    store = procs.spawn("store", Store).slice(gpus=0)
    received = store.give.call_one(LEN).get()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0 if int(received.sum()) == LEN else 1)
    del received
    for value in range(3):
        array = np.full(LEN, value, np.uint8)
        store.take.call_one(array).get()
        store.give.call_one(LEN).get()[:] = 7
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(read)
    os.close(write)
