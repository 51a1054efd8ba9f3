"""Replacing a class by another: in the program, and in every process of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from workers import WorkerProcess

from mesh_core import (
    Actor,
    attach_to_workers,
    endpoint,
    patch_actor,
    shutdown_context,
    this_host,
    this_proc,
)
from mesh_core._processes.local_host import LocalHost

if TYPE_CHECKING:
    from mesh_core import ProcMesh

LIMIT_S = 30


class Account(Actor):
    @endpoint
    def balance(self) -> int:
        return 100


class Broke(Account):
    @endpoint
    def balance(self) -> int:
        return 0


class Broker(Account):
    @endpoint
    def balance(self) -> int:
        return -1


class Bank(Actor):
    """Spawns accounts like code under test."""

    @endpoint
    def here(self) -> int:
        """Query an account in the process of the bank."""
        return this_proc().spawn("account", Account).balance.call_one().get()

    @endpoint
    def elsewhere(self) -> int:
        """Query an account in a new process."""
        with this_host().spawn_procs() as procs:
            return procs.spawn("account", Account).balance.call_one().get()

    @endpoint
    def branch(self) -> int:
        """Query a new bank in a new process."""
        with this_host().spawn_procs() as procs:
            return procs.spawn("bank", Bank).here.call_one().get()

    @endpoint
    def patch(self) -> None:
        with patch_actor(Account, Broke):
            pass


WAYS = ["here", "elsewhere", "branch"]


def ask(bank: Any, way: str) -> int:
    """Query a bank with one of its endpoints."""
    balance: int = getattr(bank, way).call_one().get(timeout=LIMIT_S)
    return balance


@pytest.mark.parametrize("way", WAYS)
def test_actor_spawns_the_mock_while_the_block_runs(proc: ProcMesh, way: str) -> None:
    bank = proc.spawn("bank", Bank)
    with patch_actor(Account, Broke):
        assert ask(bank, way) == 0
    assert ask(bank, way) == 100


@pytest.mark.parametrize("way", WAYS)
def test_process_that_is_started_within_the_block_spawns_the_mock(way: str) -> None:
    with patch_actor(Account, Broke), this_host().spawn_procs() as procs:
        assert ask(procs.spawn("bank", Bank), way) == 0


def test_patching_does_not_wait_for_processes_that_failed_to_start(
    proc: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = proc.spawn("bank", Bank)
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise OSError("too many open files")

        patch.setattr(LocalHost, "spawn", fail)
        with pytest.raises(OSError, match="too many open files"):
            this_host().spawn_procs()
    with patch_actor(Account, Broke):
        assert ask(bank, "here") == 0


def test_inner_block_replaces_the_mock_and_restores_it(proc: ProcMesh) -> None:
    bank = proc.spawn("bank", Bank)
    with patch_actor(Account, Broke):
        with patch_actor(Account, Broker):
            assert ask(bank, "here") == -1
        assert ask(bank, "here") == 0


def test_classes_pickled_by_value_can_be_replaced(proc: ProcMesh) -> None:
    class Original(Actor):
        @endpoint
        def name(self) -> str:
            return "original"

    class Mock(Original):
        @endpoint
        def name(self) -> str:
            return "mock"

    class Spawner(Actor):
        @endpoint
        def name(self) -> str:
            return this_proc().spawn("original", Original).name.call_one().get()

    spawner = proc.spawn("spawner", Spawner)
    with patch_actor(Original, Mock):
        assert spawner.name.call_one().get() == "mock"
    assert spawner.name.call_one().get() == "original"


def test_an_actor_cannot_patch_classes(proc: ProcMesh) -> None:
    bank = proc.spawn("bank", Bank)
    with pytest.raises(RuntimeError, match="call it in the program"):
        bank.patch.call_one().get()


def test_mock_that_cannot_be_pickled_is_refused_at_the_call(proc: ProcMesh) -> None:
    import threading

    class Unpicklable(Account):
        lock = threading.Lock()

    with pytest.raises(TypeError, match="lock"), patch_actor(Account, Unpicklable):
        pass
    assert ask(proc.spawn("bank", Bank), "here") == 100


def test_actor_on_another_host_spawns_the_mock() -> None:
    with WorkerProcess() as early, WorkerProcess() as late:
        banks = attach_to_workers([early.address]).spawn_procs().spawn("bank", Bank)
        banks.initialized.get(timeout=LIMIT_S)
        with patch_actor(Account, Broke):
            others = attach_to_workers([late.address]).spawn_procs().spawn("bank", Bank)
            for bank in (banks, others):
                assert ask(bank, "here") == ask(bank, "branch") == 0
        for bank in (banks, others):
            assert ask(bank, "branch") == 100
        shutdown_context().get(timeout=LIMIT_S)
