"""Combining the values of processes, and moving them from mesh to mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from mesh_core import Region
from mesh_tensor._collectives.coalescing import reduce_tree, reduce_tree_
from mesh_tensor._collectives.plans import issue_move, issue_part, issue_reduce
from mesh_tensor._collectives.steps import OPS, Move, Reduction
from mesh_tensor._errors import WrongMesh
from mesh_tensor._mesh.activation import check_stream
from mesh_tensor._mesh.rank_tensor import rank_tensor
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._streams.stream import Stream

__all__ = ["reduce", "reduce_", "to_mesh", "vary"]

T = TypeVar("T")

_NAMES = (*OPS, "stack")


def reduce(
    tensor: T,
    dims: str | Sequence[str] | None = None,
    reduction: str = "sum",
    scatter: bool = False,
    out: Tensor | None = None,
    grad: str = "sum",
) -> T:
    """Combines the values of all processes that differ along some dimensions of the mesh.

    Args:
        tensor: What is combined, of any shape; or a tree of tensors (a list, a dict), which are
            combined element by element in as few collectives as 25 MiB for each allow.
        dims: Along which dimensions; all of them where none is said.
        reduction: `sum`, `avg`, `product`, `min`, `max`, `band`, `bor` or `bxor`, element by
            element; or `stack`, which puts them one behind the other in a new first dimension.
        scatter: Give each process its part only, along the first dimension, whose size is that of
            the group: of a sum what `reduce_scatter` gives, of a stack what `all_to_all` gives.
        out: Where to put the result, instead of a new tensor.
        grad: How gradients come back through it: `sum` where each process has a loss of its own
            and all of them count; `same` where all have the same loss, made of the same result.

    Returns:
        The result, on the same mesh; of a tree one of results, which share memory.

    Raises:
        UnknownDim: There is no such dimension.
        ValueError: There is no such reduction, or the first dimension does not fit.
    """
    if not isinstance(tensor, torch.Tensor):
        _check_tree(reduction, scatter, out)
        combined: T = reduce_tree(tensor, lambda one: reduce(one, dims, reduction, grad=grad))
        return combined
    return cast("T", _reduce_one(cast("Tensor", tensor), dims, reduction, scatter, out, grad))


def _reduce_one(
    tensor: Tensor,
    dims: str | Sequence[str] | None,
    reduction: str,
    scatter: bool,
    out: Tensor | None,
    grad: str,
) -> Tensor:
    how = _reduction(tensor, dims, reduction, scatter)
    if grad not in ("sum", "same"):
        raise ValueError(f"gradients come back by 'sum' or as the 'same', not by {grad!r}")
    if out is not None:
        if torch.is_grad_enabled() and (tensor.requires_grad or out.requires_grad):
            raise ValueError(
                "a result in 'out' has no gradient: leave it out, or use torch.no_grad"
            )
        return _issue(tensor, how, out)
    if torch.is_grad_enabled() and tensor.requires_grad:
        reduced: Tensor = _Reduce.apply(tensor, how, grad)
        return reduced
    return _issue(tensor, how)


def reduce_(tensor: T, dims: str | Sequence[str] | None = None, reduction: str = "sum") -> T:
    """As `reduce`, with the result in the tensor itself, or in those of a tree.

    Raises:
        UnknownDim: There is no such dimension.
        ValueError: There is no such reduction, or the tensor needs gradients.
    """
    if not isinstance(tensor, torch.Tensor):
        _check_tree(reduction, False, None)
        combined: T = reduce_tree_(tensor, lambda one: reduce_(one, dims, reduction))
        return combined
    operand = cast("Tensor", tensor)
    if torch.is_grad_enabled() and operand.requires_grad:
        raise ValueError("what needs gradients is not reduced in place: use reduce")
    how = _reduction(operand, dims, reduction, False)
    return cast("T", _issue(operand, how, in_place=True))


def _check_tree(reduction: str, scatter: bool, out: Tensor | None) -> None:
    if reduction == "stack" or scatter or out is not None:
        raise ValueError("a tree is combined element by element: stack and scatter one by one")


def to_mesh(tensor: Tensor, mesh: DeviceMesh, stream: Stream | None = None) -> Tensor:
    """Moves a tensor to other processes: each gets the value of the one in the same place.

    Dimensions that both have must be of one size; along those that only the goal has, each
    process gets the same. Dimensions that only the source has must be of size one.

    Args:
        tensor: What is moved.
        mesh: Where to.
        stream: On which stream, that of the tensor if it is another one beside; the result is on
            it. Where none is said, it is that of the tensor.

    Raises:
        WrongMesh: The meshes do not fit, or are of different engines.
        WrongStream: No stream is said, and another one is active than that of the tensor.
    """
    own = tensor._meta.mesh
    if stream is not None and stream is not own._lane.stream:
        lent, loan = stream.borrow(tensor)
        with loan, stream.activate():
            return to_mesh(lent, mesh)
    if stream is None:
        check_stream(own)
    if tensor.requires_grad and torch.is_grad_enabled():
        moved: Tensor = _Move.apply(tensor, mesh)
        return moved
    return _move(tensor, mesh)


def vary(tensor: Tensor, dims: str | Sequence[str] | None = None) -> Tensor:
    """Gives the tensor itself, whose gradients are summed along dimensions on the way back.

    It says that from here on each process along them does something else with a value that they
    all have: what enters a layer whose weights are cut, for one. `reduce(..., grad="same")` is what
    comes at the end of such a layer.

    Raises:
        UnknownDim: There is no such dimension.
    """
    varied: Tensor = _Vary.apply(tensor, tensor.mesh._dims(dims))
    return varied


class _Vary(torch.autograd.Function):
    """Nothing on the way there, a sum on the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dims: tuple[str, ...]) -> torch.Tensor:
        ctx.dims = dims
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return reduce(grads[0], ctx.dims, "sum"), None


class _Reduce(torch.autograd.Function):
    """Combines, and brings gradients back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, how: Reduction, grad: str) -> Tensor:
        if how.op not in ("sum", "avg", "stack"):
            raise ValueError(f"gradients do not come back through {how.op!r}: detach the tensor")
        ctx.how, ctx.grad = how, grad
        return _issue(tensor, how)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        how, (gradient,) = ctx.how, grads
        size = gradient.mesh.size(how.dims)
        if how.op == "stack":
            if how.scatter:
                # What came from each process goes back to it.
                return reduce(gradient, how.dims, "stack", scatter=True), None, None
            if ctx.grad == "same":
                return _own_part(gradient, how.dims), None, None
            return reduce(gradient, how.dims, "sum", scatter=True), None, None
        scaled = gradient / size if how.op == "avg" else gradient
        if how.scatter:
            return reduce(scaled, how.dims, "stack"), None, None
        if ctx.grad == "same":
            return scaled, None, None
        return reduce(scaled, how.dims, "sum"), None, None


class _Move(torch.autograd.Function):
    """Moves, and brings gradients back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mesh: DeviceMesh) -> Tensor:
        ctx.source = tensor._meta.mesh
        return _move(tensor, mesh)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = grads
        mesh = gradient._meta.mesh
        more = [dim for dim in mesh.sizes if dim not in ctx.source.sizes]
        if more:
            gradient = reduce(gradient, more, "sum")
            mesh = mesh.slice(**dict.fromkeys(more, 0))
            gradient = issue_part(gradient, mesh)
        return _move(gradient, ctx.source), None


def _own_part(stacked: Tensor, dims: tuple[str, ...]) -> Tensor:
    rank = rank_tensor(stacked._meta.mesh, dims)
    return torch.index_select(stacked, 0, rank.view(1)).squeeze(0)  # type: ignore[return-value]


def _reduction(
    tensor: Tensor, dims: str | Sequence[str] | None, reduction: str, scatter: bool
) -> Reduction:
    mesh = tensor.mesh
    if reduction not in _NAMES:
        raise ValueError(f"no reduction {reduction!r}: use one of {', '.join(_NAMES)}")
    chosen = mesh._dims(dims)
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"a dimension of {chosen} is there twice")
    size = mesh.size(chosen)
    if scatter and (tensor.dim() == 0 or tensor.shape[0] != size):
        raise ValueError(
            f"the first dimension of {tuple(tensor.shape)} is scattered over {size} processes: "
            "it must have that size"
        )
    shape = tuple(tensor.shape)
    if tensor._known_scalar is not None:
        tensor._known_scalar.family[0] = False
    return Reduction(chosen, reduction, scatter, False, shape, tensor.dtype, tensor.device)


def _issue(
    tensor: Tensor, how: Reduction, out: Tensor | None = None, in_place: bool = False
) -> Tensor:
    check_stream(tensor._meta.mesh)
    return issue_reduce(tensor, how, out, in_place)


def _move(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    source = tensor._meta.mesh
    mesh = mesh._on(source._lane.stream)
    if source._engine is not mesh._engine:
        raise WrongMesh(
            f"{mesh} is on other processes than {source}: fetch the values and put them"
        )
    routes = tuple(
        (source._region.rank_at(index), tuple(goals))
        for index, goals in enumerate(_routes(source._region, mesh._region))
    )
    how = Move(routes, tuple(tensor.shape), tensor.dtype, tensor.device)
    return issue_move(tensor, mesh, how)


def _routes(source: Region, goal: Region) -> list[list[int]]:
    sizes = dict(zip(goal.labels, goal.sizes, strict=True))
    for label, size in zip(source.labels, source.sizes, strict=True):
        if sizes.get(label, 1) != size:
            raise WrongMesh(
                f"dimension {label!r} has size {size} at the source and "
                f"{sizes.get(label, 'none')} at the goal: slice or reduce it first"
            )
    goals: list[list[int]] = [[] for _ in range(len(source))]
    for index in range(len(goal)):
        here = dict(zip(goal.labels, goal.coordinates(index), strict=True))
        at = 0
        for label, size in zip(source.labels, source.sizes, strict=True):
            at = at * size + here.get(label, 0)
        goals[at].append(goal.rank_at(index))
    return goals
