"""A failure on a process is raised when a value that depends on it is fetched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mesh_core import MeshError, ProcDied, ProcMesh, this_host
from mesh_core.testing import kill_proc
from mesh_tensor import DeviceMesh, OpFailed, inspect


def fails_on_one(mesh: DeviceMesh) -> torch.Tensor:
    """Return a tensor whose computation fails on the processes with `tp=1`."""
    return torch.ones(2)[mesh.rank("tp").view(1) * 9]  # the line of the failure


def test_the_error_names_the_line_and_the_rank(mesh: DeviceMesh) -> None:
    lost = fails_on_one(mesh)
    with pytest.raises(
        OpFailed, match=r"aten.index.Tensor failed on rank [13]: IndexError"
    ) as caught:
        inspect(lost, dp=0, tp=1)
    assert "return torch.ones(2)[mesh.rank" in caught.value.stack
    assert "lost = fails_on_one(mesh)" in caught.value.stack
    assert isinstance(caught.value.__cause__, IndexError)


def test_only_dependents_of_a_failure_are_lost_and_on_all_ranks(mesh: DeviceMesh) -> None:
    x = torch.ones(4)
    lost = fails_on_one(mesh)
    good = x * 3
    dependant = (lost + 1).sum() + good.sum()
    assert inspect(good, dp=1, tp=1).tolist() == [3, 3, 3, 3]
    for tp in range(2):
        with pytest.raises(OpFailed):
            inspect(dependant, dp=0, tp=tp)
    # This includes operations that are issued later, when the failure is long known.
    with pytest.raises(OpFailed, match=r"aten\.index"):
        inspect(dependant * 2)
    assert inspect(good + 1).tolist() == [4, 4, 4, 4]


def test_a_partially_written_tensor_is_lost_with_its_views(mesh: DeviceMesh) -> None:
    x = torch.zeros(3, 3)
    row, other = x[0], torch.zeros(3)
    x[1].add_(fails_on_one(mesh).sum())
    for one in (x, row, x.t()):
        with pytest.raises(OpFailed):
            inspect(one)
    assert inspect(other).tolist() == [0, 0, 0]


def test_a_slot_that_held_a_failure_is_reusable(mesh: DeviceMesh) -> None:
    for _ in range(20):
        lost = fails_on_one(mesh)
        with pytest.raises(OpFailed):
            inspect(lost)
        del lost
        assert inspect(torch.ones(2) + 1).tolist() == [2, 2]


def test_a_collective_does_not_wait_for_ranks_without_an_operand(mesh: DeviceMesh) -> None:
    lost = fails_on_one(mesh)
    with pytest.raises(OpFailed, match=r"aten\.index"):
        inspect(lost.reduce("tp"), dp=0, tp=0)  # type: ignore[attr-defined]
    assert inspect(torch.ones(1).reduce("tp")).tolist() == [2]  # type: ignore[attr-defined]


def test_gradients_of_lost_tensors_are_lost(mesh: DeviceMesh) -> None:
    weight = torch.ones(1, requires_grad=True)
    (fails_on_one(mesh) * weight).sum().backward()
    assert weight.grad is not None
    with pytest.raises(OpFailed):
        inspect(weight.grad)
    assert inspect(weight.detach()).tolist() == [1]


def test_out_of_memory_is_reported_like_other_failures(mesh: DeviceMesh) -> None:
    huge = torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(OpFailed, match=r"aten\.empty"):
        inspect(huge)
    assert inspect(torch.ones(1)).item() == 1


def test_bad_operands_are_refused_at_the_call(mesh: DeviceMesh) -> None:
    with pytest.raises(RuntimeError, match="must have same reduction dim"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert inspect(torch.ones(1)).item() == 1


class TestDeaths:
    """Each test starts separate processes, because it kills some."""

    @pytest.fixture
    def procs(self) -> Iterator[ProcMesh]:
        procs = this_host().spawn_procs({"dp": 2, "tp": 1}, name="mortal")
        yield procs
        procs.stop().get()

    def test_a_process_death_fails_the_current_and_later_fetches(self, procs: ProcMesh) -> None:
        with procs.activate():
            x = torch.ones(2)
            assert inspect(x).tolist() == [1, 1]
            kill_proc(procs, 1)
            with pytest.raises(ProcDied):
                inspect(x + 1)
            with pytest.raises(MeshError):
                inspect(x)

    def test_a_process_death_fails_a_collective_on_all_ranks(self, procs: ProcMesh) -> None:
        with procs.activate():
            x = torch.ones(2)
            inspect(x.reduce("dp"))  # type: ignore[attr-defined]
            pending = [x.reduce("dp") for _ in range(20)]  # type: ignore[attr-defined]
            kill_proc(procs, 1)
            with pytest.raises(MeshError):
                inspect([*pending, x.reduce("dp")])  # type: ignore[attr-defined]

    def test_the_mesh_is_usable_after_a_replacement(self, procs: ProcMesh) -> None:
        with procs.activate():
            x = torch.ones(2)
            assert inspect(x.reduce("dp")).tolist() == [2, 2]  # type: ignore[attr-defined]
            kill_proc(procs, 1)
            with pytest.raises(MeshError):
                inspect(x.reduce("dp"))  # type: ignore[attr-defined]
        procs.replace(1)
        with procs.activate():
            y = torch.full((2,), 3.0)
            assert inspect(y.reduce("dp"), dp=1, tp=0).tolist() == [6, 6]  # type: ignore[attr-defined]
            # Tensors from before the replacement are lost, which raises an error.
            with pytest.raises((MeshError, TypeError)):
                inspect(x + y)
