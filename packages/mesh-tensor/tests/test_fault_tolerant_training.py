"""Training continues after ranks die, hang, raise exceptions, or lose their copies."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from mesh_core import DeadlineExceeded, MeshError, ProcMesh, configured, this_host
from mesh_core.testing import proc_pid, wait_until
from mesh_tensor._training import members
from mesh_tensor._training.members import Members
from mesh_tensor._training.rendezvous_store import MeshStore
from mesh_tensor.testing import damage_checkpoints
from mesh_tensor.training import (
    DiskCheckpoints,
    ElasticSampler,
    FaultTolerantTraining,
    NoCheckpoint,
    Recovery,
    TrainingFailed,
)

SIZE = 3
STEPS = 30
LIMIT_S = 60.0
Fault = Callable[[Path], None]


class Program:
    """Fits a linear function; injects faults at given steps of given ranks, once each."""

    def __init__(self, folder: Path, faults: Mapping[tuple[int, int], Fault] | None = None) -> None:
        self.folder = folder
        self.faults = faults or {}
        self.weight = torch.randn(8)
        self.velocity = torch.zeros(8)
        self.sampler = ElasticSampler(120, 12, seed=1)
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(120, 8, generator=generator)

    def join(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        (self.folder / f"{self.rank}.pid").write_text(str(os.getpid()))

    def train_step(self, step: int) -> float:
        self.inject(step)
        chosen = self.inputs[self.sampler.indices(step, self.rank, self.size)]
        error = chosen @ self.weight - chosen.sum(1) + 0.01 * torch.randn(len(chosen))
        gradient = (error[:, None] * chosen).mean(0)
        distributed.all_reduce(gradient)
        self.velocity = 0.9 * self.velocity + gradient / self.size
        self.weight = self.weight - 0.05 * self.velocity
        return error.square().mean().item()

    def inject(self, step: int) -> None:
        """Inject a fault, unless it was injected before."""
        fault = self.faults.get((step, self.rank))
        mark = self.folder / f"{step}.{self.rank}"
        if fault is not None and not mark.exists():
            mark.touch()
            fault(self.folder)

    def state_dict(self) -> Mapping[str, Any]:
        return {"weight": self.weight, "velocity": self.velocity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weight, self.velocity = state["weight"], state["velocity"]


class Sharded(Program):
    """Each rank has a different state, on which all other ranks depend."""

    def train_step(self, step: int) -> float:
        self.inject(step)
        total = self.weight.clone()
        distributed.all_reduce(total)
        self.weight = 0.5 * self.weight + 0.1 * total * (1 + self.rank)
        return 0.0


def kill(folder: Path) -> None:
    """End the process as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_all(folder: Path) -> None:
    """End all ranks at once."""
    others = [int(path.read_text()) for path in folder.glob("*.pid")]
    for pid in sorted(others, key=lambda pid: pid == os.getpid()):
        os.kill(pid, signal.SIGKILL)


def stop(folder: Path) -> None:
    """Stop the process, which then does not reply any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def receive(folder: Path) -> None:
    """Hang in a collective."""
    distributed.recv(torch.zeros(1), (distributed.get_rank() + 1) % SIZE)


def fail(folder: Path) -> None:
    """Raise an exception of the program."""
    raise ValueError("bad sample")


def damage(folder: Path) -> None:
    """Change a bit of each checkpoint of this rank."""
    damage_checkpoints()


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    """Processes of this module, some of which are killed."""
    started = this_host().spawn_procs({"gpus": SIZE}, name="resilient")
    yield started
    started.stop().get()


def train(
    procs: ProcMesh, program: Callable[..., Program], *args: Any, **options: Any
) -> tuple[list[torch.Tensor], list[Recovery]]:
    """Train; return the weights of all ranks, and the recoveries."""
    with FaultTolerantTraining(procs, program, *args, **options) as training:
        training.run(STEPS)
        weights = [training.state_dict(rank)["weight"] for rank in range(SIZE)]
        assert training.step == STEPS
        return weights, training.recoveries


@pytest.fixture(scope="module")
def undisturbed(procs: ProcMesh, tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """The weights after training without faults."""
    weights, recoveries = train(procs, Program, tmp_path_factory.mktemp("undisturbed"))
    assert not recoveries
    assert all(torch.equal(one, weights[0]) for one in weights)
    return weights


@pytest.mark.parametrize(
    ("faults", "kinds", "ranks"),
    [
        ({(4, 0): kill, (9, 2): kill}, ["process", "process"], [(0,), (2,)]),
        ({(5, 1): stop}, ["hang"], [(1,)]),
        ({(8, 1): receive}, ["hang"], None),
        ({(6, 2): fail}, ["exception"], [(2,)]),
        ({(7, 1): kill, (7, 2): kill}, ["process"], None),
    ],
    ids=["killed", "stopped", "in_a_collective", "exception", "two_at_once"],
)
def test_the_result_equals_that_of_an_undisturbed_run(
    procs: ProcMesh,
    undisturbed: list[torch.Tensor],
    tmp_path: Path,
    faults: Mapping[tuple[int, int], Fault],
    kinds: list[str],
    ranks: list[tuple[int, ...]] | None,
) -> None:
    weights, recoveries = train(procs, Program, tmp_path, faults)
    assert all(torch.equal(*pair) for pair in zip(weights, undisturbed, strict=True))
    assert [one.kind for one in recoveries][: len(kinds)] == kinds
    assert {one.source for one in recoveries} == {"memory"}, recoveries
    assert max(one.lost_steps for one in recoveries) <= 1
    if ranks is not None:
        assert [one.ranks for one in recoveries] == ranks


def test_damaged_copies_are_not_loaded(
    procs: ProcMesh, undisturbed: list[torch.Tensor], tmp_path: Path
) -> None:
    faults = {(8, 1): damage, (9, 1): damage, (9, 0): kill}
    weights, (recovery,) = train(procs, Program, tmp_path, faults)
    assert all(torch.equal(*pair) for pair in zip(weights, undisturbed, strict=True))
    assert recovery.damaged_copies >= 1


def test_the_state_of_a_lost_rank_is_restored_from_its_holder(
    procs: ProcMesh, tmp_path: Path
) -> None:
    expected, recoveries = train(procs, Sharded, tmp_path, is_sharded=True)
    assert not recoveries
    weights, recoveries = train(procs, Sharded, tmp_path, {(11, 1): kill}, is_sharded=True)
    assert len(recoveries) == 1, [(one.kind, one.reason, one.step) for one in recoveries]
    (recovery,) = recoveries
    assert not torch.equal(weights[0], weights[1])
    assert all(torch.equal(*pair) for pair in zip(weights, expected, strict=True))
    assert recovery.lost_steps <= 1


def test_a_checkpoint_on_disk_is_the_last_resort(procs: ProcMesh, tmp_path: Path) -> None:
    faults = {(14, 0): kill_all}
    disk = DiskCheckpoints(str(tmp_path / "checkpoints"), every=5, kept=1)
    weights, recoveries = train(procs, Program, tmp_path, faults, disk=disk)
    assert all(torch.equal(one, weights[0]) for one in weights)
    assert [one.source for one in recoveries] == ["disk"]
    with FaultTolerantTraining(procs, Program, tmp_path, disk=disk) as training:
        training.run(STEPS + 1)
        assert sorted(training.losses) == [STEPS]
    assert [path.name for path in Path(disk.folder).iterdir()] == ["step-000000030"]


def test_training_fails_without_any_copy(procs: ProcMesh, tmp_path: Path) -> None:
    faults = {(3, 1): kill_all}
    with pytest.raises(NoCheckpoint, match="pass disk=DiskCheckpoints"):
        train(procs, Program, tmp_path, faults)


class SlowToEnd(Program):
    """Takes longer to end an aborted step than a rank does on a machine that is not busy."""

    def train_step(self, step: int) -> float:
        seconds = 2.0
        try:
            return super().train_step(step)
        except RuntimeError:
            time.sleep(seconds)
            raise


def test_slow_ranks_keep_their_state_when_another_one_hangs(
    procs: ProcMesh, tmp_path: Path
) -> None:
    pids = [proc_pid(procs, rank) for rank in range(SIZE)]
    _, recoveries = train(procs, SlowToEnd, tmp_path, {(5, 1): stop})
    assert [(one.kind, one.ranks) for one in recoveries] == [("hang", (1,))]
    replaced = [proc_pid(procs, rank) != pids[rank] for rank in range(SIZE)]
    assert replaced == [False, True, False]


class LostWhileJoining(Program):
    """Rank 1 is killed while a second process group is formed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {(5, 2): fail})

    def inject(self, step: int) -> None:
        if (step, self.rank) == (3, 1) and not (self.folder / "lost").exists():
            (self.folder / "lost").touch()
            MeshStore.set = lambda *_: kill(self.folder)  # type: ignore[method-assign]
        super().inject(step)


def test_ranks_keep_their_state_if_another_one_is_lost_while_they_join(
    procs: ProcMesh, tmp_path: Path
) -> None:
    pids = [proc_pid(procs, rank) for rank in range(SIZE)]
    with FaultTolerantTraining(procs, LostWhileJoining, tmp_path) as training:
        training.run(STEPS)
    assert [one.source for one in training.recoveries] == ["memory"]
    replaced = [proc_pid(procs, rank) != pids[rank] for rank in range(SIZE)]
    assert replaced == [False, True, False]


class Broken(Program):
    """Raises an exception in each attempt."""

    def train_step(self, step: int) -> float:
        if step == 2 and self.rank == 1:
            raise ValueError("bad sample")
        return super().train_step(step)


def test_a_step_that_always_fails_stops_training(procs: ProcMesh, tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="step 2 has failed 3 times: rank 1: ValueError") as it:
        train(procs, Broken, tmp_path, attempts=3)
    assert "train_step" in str(it.value.__cause__)


class Reducing(Program):
    """Sends many messages in each step."""

    def train_step(self, step: int) -> float:
        self.inject(step)
        for _ in range(20):
            distributed.all_reduce(torch.zeros(10_000))
        return 0.0


@pytest.mark.slow
def test_exceptions_interrupt_the_collectives_of_the_other_ranks(
    procs: ProcMesh, tmp_path: Path
) -> None:
    faults = {(step, step % SIZE): fail for step in range(200)}
    pids = [proc_pid(procs, rank) for rank in range(SIZE)]
    with FaultTolerantTraining(procs, Reducing, tmp_path, faults) as training:
        training.run(200)
    assert [one.kind for one in training.recoveries] == ["exception"] * 200
    # A rank whose collective does not end is killed, and has another process then.
    assert [proc_pid(procs, rank) for rank in range(SIZE)] == pids


class SlowToCreate(Program):
    """Takes longer to create than the grace period of a stop."""

    def __init__(self, folder: Path, seconds: float) -> None:
        time.sleep(seconds)
        super().__init__(folder)


def test_a_training_closes_while_its_program_is_created(procs: ProcMesh, tmp_path: Path) -> None:
    with configured(stop_grace_s=0.1):
        FaultTolerantTraining(procs, SlowToCreate, tmp_path, 1.0).close()


def test_a_failure_to_close_does_not_replace_the_exception_of_the_program(
    procs: ProcMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_members = Members.stop

    def fail_to_stop(self: Members) -> None:
        stop_members(self)
        raise MeshError("rank 1 is busy")

    monkeypatch.setattr(Members, "stop", fail_to_stop)
    with (
        pytest.raises(ZeroDivisionError) as raised,
        FaultTolerantTraining(procs, Program, tmp_path),
    ):
        1 / 0  # noqa: B018
    assert raised.value.__notes__ == [
        "and the actors of the training did not stop cleanly: rank 1 is busy"
    ]


class EndsLate:
    """Is created, and deleted, when the steps of the next training have begun."""

    def __init__(self, folder: Path) -> None:
        self.deleted = folder / f"{os.getpid()}.deleted"
        wait_until((folder / "begun").exists, LIMIT_S)

    def __del__(self) -> None:
        self.deleted.touch()


class Next(Program):
    """Trains while the actors of the previous training end."""

    def train_step(self, step: int) -> float:
        if step == 3:
            (self.folder / "begun").touch()
            deleted = self.folder / f"{os.getpid()}.deleted"
            wait_until(lambda: gc.collect() >= 0 and deleted.exists(), LIMIT_S)
        return super().train_step(step)


def test_actors_that_end_late_leave_the_group_of_the_next_training(
    procs: ProcMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_END_S", 0.1)
    with configured(stop_grace_s=0.1), pytest.raises(DeadlineExceeded):
        FaultTolerantTraining(procs, EndsLate, tmp_path).close()
    _, recoveries = train(procs, Next, tmp_path, stall_timeout_s=LIMIT_S)
    assert recoveries == []


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"stall_timeout_s": 0.0}])
def test_invalid_options_are_rejected(procs: ProcMesh, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=0"):
        FaultTolerantTraining(procs, Program, Path(), **wrong)


def test_the_error_in_a_notebook_says_how_to_train(procs: ProcMesh, tmp_path: Path) -> None:
    async def cell(training: FaultTolerantTraining) -> None:
        with pytest.raises(RuntimeError, match="use await asyncio"):
            training.run(1)
        await asyncio.to_thread(training.run, 1)

    with FaultTolerantTraining(procs, Program, tmp_path) as training:
        asyncio.run(cell(training))
        assert training.step == 1
