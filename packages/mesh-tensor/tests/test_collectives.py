"""Values are reduced and moved as by torch.distributed, with gradients."""

from __future__ import annotations

from functools import reduce as fold
from typing import Any

import pytest
import torch

from mesh_core import ProcMesh, UnknownDim
from mesh_tensor import DeviceMesh, Tensor, inspect, no_mesh, reduce, to_mesh, vary

RANKS = [(dp, tp) for dp in range(2) for tp in range(2)]


def all_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the values of the four processes."""
    return [inspect(tensor, dp=dp, tp=tp) for dp, tp in RANKS]


def varied(mesh: DeviceMesh, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """Return a tensor that differs between processes and between elements."""
    count = torch.Size(shape).numel()
    start = mesh.rank(["dp", "tp"]) * 100
    return (torch.arange(count) + start + 1).view(shape).to(dtype)


@pytest.mark.parametrize(
    ("reduction", "combine"),
    [
        ("sum", torch.add),
        ("product", torch.mul),
        ("min", torch.minimum),
        ("max", torch.maximum),
        ("band", torch.bitwise_and),
        ("bor", torch.bitwise_or),
        ("bxor", torch.bitwise_xor),
    ],
)
def test_reduction(mesh: DeviceMesh, reduction: str, combine: Any) -> None:
    x = varied(mesh, 2, 3, dtype=torch.int64)
    parts, found = all_of(x), all_of(x.reduce("tp", reduction))
    everything = all_of(x.reduce(reduction=reduction))
    with no_mesh.activate():
        for place, (dp, _) in enumerate(RANKS):
            assert found[place].equal(combine(parts[2 * dp], parts[2 * dp + 1]))
            assert everything[place].equal(fold(combine, parts))


def test_average(mesh: DeviceMesh) -> None:
    x = varied(mesh, 3)
    parts, found = all_of(x), all_of(x.reduce(("dp", "tp"), "avg"))
    with no_mesh.activate():
        assert found[3].equal(sum(parts[1:], parts[0]) / 4)


def test_stack_and_scatter(mesh: DeviceMesh) -> None:
    x = varied(mesh, 2, 3)
    parts = all_of(x)
    stacked, swapped = (
        all_of(x.reduce("dp", "stack")),
        all_of(x.reduce("dp", "stack", scatter=True)),
    )
    scattered = all_of(x.reduce("tp", "sum", scatter=True))
    with no_mesh.activate():
        for place, (dp, tp) in enumerate(RANKS):
            column = [parts[tp], parts[2 + tp]]
            assert stacked[place].equal(torch.stack(column))
            assert swapped[place].equal(torch.stack([one[dp] for one in column]))
            assert scattered[place].equal((parts[2 * dp] + parts[2 * dp + 1])[tp])


def test_the_order_of_dimensions_determines_the_stacking_order(mesh: DeviceMesh) -> None:
    x = mesh.rank(["dp", "tp"])
    assert inspect(reduce(x, ["dp", "tp"], "stack")).tolist() == [0, 1, 2, 3]
    assert inspect(reduce(x, ["tp", "dp"], "stack")).tolist() == [0, 2, 1, 3]


def test_the_result_can_be_written_in_place_or_to_out(mesh: DeviceMesh) -> None:
    x, out = varied(mesh, 4), torch.zeros(4)
    view = x[:2]
    assert x.reduce("tp", out=out) is out
    wanted = [2 * n + 102.0 for n in range(4)]
    assert inspect(out).tolist() == wanted
    assert x.reduce_("tp") is x
    assert inspect(view).tolist() == wanted[:2]


def test_non_contiguous_tensors_are_reduced(mesh: DeviceMesh) -> None:
    x = varied(mesh, 3, 2).t()
    parts, found = all_of(x), all_of(x.reduce("tp"))
    with no_mesh.activate():
        assert found[0].equal(parts[0] + parts[1])


def test_invalid_arguments_are_refused_at_the_call(mesh: DeviceMesh) -> None:
    x = varied(mesh, 3)
    with pytest.raises(ValueError, match="unknown reduction 'mean'"):
        x.reduce("dp", "mean")
    with pytest.raises(UnknownDim):
        x.reduce("pp")
    with pytest.raises(ValueError, match="must have that size"):
        x.reduce("dp", "sum", scatter=True)
    with pytest.raises(ValueError, match=r"shape \(3,\) and torch.float32 does not fit into"):
        x.reduce("dp", out=torch.zeros(4))
    with pytest.raises(ValueError, match="duplicate dimension"):
        x.reduce(["dp", "dp"])
    with pytest.raises(ValueError, match="needs gradients"):
        varied(mesh, 3).requires_grad_().reduce_("dp")


def gradient(mesh: DeviceMesh, shape: tuple[int, ...], way: Any) -> list[torch.Tensor]:
    """Return each process's gradient of the sum of the outputs, weighted by its rank."""
    x = varied(mesh, *shape).requires_grad_()
    ((way(x) * (mesh.rank(["dp", "tp"]) + 1)).sum()).backward()
    return all_of(x.grad)


def test_collectives_propagate_gradients(mesh: DeviceMesh) -> None:
    # The weights of the four processes are 1, 2, 3 and 4.
    def of(found: list[torch.Tensor]) -> list[float]:
        return [one.flatten()[0].item() for one in found]

    assert of(gradient(mesh, (2,), lambda x: x.reduce("tp"))) == [3, 3, 7, 7]
    assert of(gradient(mesh, (2,), lambda x: x.reduce("tp", "avg"))) == [1.5, 1.5, 3.5, 3.5]
    assert of(gradient(mesh, (2,), lambda x: x.reduce("tp", grad="same"))) == [1, 2, 3, 4]
    assert of(gradient(mesh, (2,), lambda x: x.reduce("dp", "stack"))) == [4, 6, 4, 6]
    assert of(gradient(mesh, (2,), lambda x: vary(x, "dp"))) == [4, 6, 4, 6]
    parts = gradient(mesh, (2, 3), lambda x: x.reduce("tp", "sum", scatter=True))
    assert [one[:, 0].tolist() for one in parts] == [[1, 2], [1, 2], [3, 4], [3, 4]]
    swapped = gradient(mesh, (2, 3), lambda x: x.reduce("tp", "stack", scatter=True))
    assert [one[:, 0].tolist() for one in swapped] == [[1, 2], [1, 2], [3, 4], [3, 4]]
    with pytest.raises(ValueError, match="'max' does not propagate gradients"):
        gradient(mesh, (2,), lambda x: x.reduce("tp", "max"))


def test_values_move_between_slices(procs: ProcMesh, mesh: DeviceMesh) -> None:
    first, second = mesh.slice(dp=0), mesh.slice(dp=1)
    with first.activate():
        x = (first.rank("tp") + 1.0).requires_grad_()
    y = to_mesh(x * 2, second)
    assert isinstance(y, Tensor)
    assert y.mesh is second
    assert [inspect(y.detach(), tp=tp).item() for tp in range(2)] == [2, 4]
    (y * y).backward()
    assert x.grad is not None
    assert [inspect(x.grad, tp=tp).item() for tp in range(2)] == [8, 16]


def test_the_error_for_a_move_to_a_proc_mesh_says_which_mesh_to_pass(
    procs: ProcMesh, mesh: DeviceMesh
) -> None:
    with mesh.activate(), pytest.raises(TypeError, match=r"procs.activate\(\) as mesh"):
        to_mesh(torch.ones(1), procs)  # type: ignore[arg-type]


def test_a_move_to_a_larger_mesh_replicates_the_values(mesh: DeviceMesh) -> None:
    source = mesh.slice(dp=1)
    with source.activate():
        x = (source.rank("tp") + 1.0).requires_grad_()
    y = x.to_mesh(mesh)
    assert [one.item() for one in all_of(y.detach())] == [1, 2, 1, 2]
    (y * (mesh.rank("dp") + 1)).backward()
    assert x.grad is not None
    assert [inspect(x.grad, tp=tp).item() for tp in range(2)] == [3, 3]


def test_a_process_group_of_a_slice_does_not_interfere_with_others(mesh: DeviceMesh) -> None:
    # Now some processes belong to more groups than others.
    with mesh.slice(dp=0).flatten("slice").activate():
        part = torch.ones(1)
    assert inspect(part.reduce("slice")).tolist() == [2]  # type: ignore[attr-defined]
    whole = mesh.split(dp=("a", "b"), a=1)
    with whole.activate():
        x = torch.ones(1)
    assert inspect(x.reduce(("tp", "b"))).tolist() == [4]  # type: ignore[attr-defined]
    assert inspect(x.reduce("b")).tolist() == [2]  # type: ignore[attr-defined]
