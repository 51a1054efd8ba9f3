"""Combining values of processes, and moving them from mesh to mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from mesh_core import Region
from mesh_tensor._collectives.coalescing import reduce_tree, reduce_tree_
from mesh_tensor._collectives.collective_ops import OPS, Move, Reduction
from mesh_tensor._collectives.compiled_ops import issue_move, issue_part, issue_reduce
from mesh_tensor._errors import WrongMesh
from mesh_tensor._mesh.activation import check_stream
from mesh_tensor._mesh.device_mesh import DeviceMesh
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Combine the values of all processes that differ along some dimensions of the mesh.

    Args:
        tensor: A tensor of any shape, or a tree of tensors (a list, a dictionary), which are
            combined element by element in buckets of up to 25 MiB.
        dims: The dimensions along which values are combined. Default: all.
        reduction: `sum`, `avg`, `product`, `min`, `max`, `band`, `bor` or `bxor`, element by
            element; or `stack`, which stacks the values in a new first dimension.
        scatter: Give each process only its part of the result, split along the first dimension,
            whose size must be the size of the group. This is a `reduce_scatter` for reductions, and
            an `all_to_all` for `stack`.
        out: A tensor to write the result to, instead of a new tensor.
        grad: How gradients flow back: `sum` if each process has its own loss and all losses count;
            `same` if all processes compute the same loss from the same result.

    Returns:
        The result, on the same mesh; for a tree, a tree of results, which share memory.

    Raises:
        UnknownDim: The mesh has no such dimension.
        ValueError: The reduction does not exist, or the size of the first dimension does not fit.
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
        raise ValueError(f"invalid grad {grad!r}: use 'sum' or 'same'")
    if out is not None:
        if torch.is_grad_enabled() and (tensor.requires_grad or out.requires_grad):
            raise ValueError("a result in 'out' has no gradient: omit 'out', or use torch.no_grad")
        return _issue(tensor, how, out)
    if torch.is_grad_enabled() and tensor.requires_grad:
        reduced: Tensor = _Reduce.apply(tensor, how, grad)
        return reduced
    return _issue(tensor, how)


def reduce_(tensor: T, dims: str | Sequence[str] | None = None, reduction: str = "sum") -> T:
    """Like `reduce`, but write the results into the tensor, or into the tensors of a tree.

    Raises:
        UnknownDim: The mesh has no such dimension.
        ValueError: The reduction does not exist, or the tensor requires gradients.
    """
    if not isinstance(tensor, torch.Tensor):
        _check_tree(reduction, False, None)
        combined: T = reduce_tree_(tensor, lambda one: reduce_(one, dims, reduction))
        return combined
    operand = cast("Tensor", tensor)
    if torch.is_grad_enabled() and operand.requires_grad:
        raise ValueError("a tensor that needs gradients cannot be reduced in place: use reduce")
    how = _reduction(operand, dims, reduction, False)
    return cast("T", _issue(operand, how, in_place=True))


def _check_tree(reduction: str, scatter: bool, out: Tensor | None) -> None:
    if reduction == "stack" or scatter or out is not None:
        raise ValueError(
            "only tensors can be stacked or scattered, not trees: call it for each tensor"
        )


def to_mesh(tensor: Tensor, mesh: DeviceMesh, stream: Stream | None = None) -> Tensor:
    """Move a tensor to other processes: each gets the value of the source at the same coordinates.

    Dimensions that both meshes have must have the same size. Along dimensions that only the
    destination has, each process gets the same value. Dimensions that only the source has must have
    size one.

    Args:
        tensor: The tensor to move.
        mesh: The destination.
        stream: The stream of the move and of its result. A stream other than the tensor's runs the
            move concurrently with the tensor's stream. Default: the stream of the tensor.

    Raises:
        WrongMesh: The meshes do not fit, or belong to different engines.
        WrongStream: No stream is passed, and the active stream is not the tensor's.
        TypeError: The destination is not a `DeviceMesh`.
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"to_mesh needs a mesh of devices, not {mesh!r}: pass the one that "
            "`with procs.activate() as mesh` returns, or a slice of it"
        )
    own = tensor._meta.mesh
    if stream is not None and stream is not own._stream_slots.stream:
        borrowed, borrow = stream.borrow(tensor)
        with borrow, stream.activate():
            return to_mesh(borrowed, mesh)
    if stream is None:
        check_stream(own)
    if tensor.requires_grad and torch.is_grad_enabled():
        moved: Tensor = _Move.apply(tensor, mesh)
        return moved
    return _move(tensor, mesh)


def vary(tensor: Tensor, dims: str | Sequence[str] | None = None) -> Tensor:
    """Return the tensor itself; in the backward pass, sum its gradients along dimensions.

    Use it where processes along these dimensions begin to compute different things from a value
    that is the same on all of them, for example at the input of a layer with sharded weights.
    `reduce(..., grad="same")` is its counterpart at the output of such a layer.

    Raises:
        UnknownDim: The mesh has no such dimension.
    """
    varied: Tensor = _SumGradients.apply(tensor, tensor.mesh._dims(dims))
    return varied


class _SumGradients(torch.autograd.Function):
    """The identity in the forward pass, a sum in the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dims: tuple[str, ...]) -> torch.Tensor:
        ctx.dims = dims
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return reduce(grads[0], ctx.dims, "sum"), None


class _Reduce(torch.autograd.Function):
    """A differentiable reduction."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, how: Reduction, grad: str) -> Tensor:
        if how.op not in ("sum", "avg", "stack"):
            raise ValueError(f"{how.op!r} does not propagate gradients: detach the tensor")
        ctx.how, ctx.grad = how, grad
        return _issue(tensor, how)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        how, (gradient,) = ctx.how, grads
        size = gradient.mesh.size(how.dims)
        if how.op == "stack":
            if how.scatter:
                # The gradient of the value from each process is returned to that process.
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
    """A differentiable move."""

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
    rank = stacked._meta.mesh._rank(dims)
    return torch.index_select(stacked, 0, rank.view(1)).squeeze(0)  # type: ignore[return-value]


def _reduction(
    tensor: Tensor, dims: str | Sequence[str] | None, reduction: str, scatter: bool
) -> Reduction:
    mesh = tensor.mesh
    if reduction not in _NAMES:
        raise ValueError(f"unknown reduction {reduction!r}: use one of {', '.join(_NAMES)}")
    chosen = mesh._dims(dims)
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"duplicate dimension in {chosen}")
    size = mesh.size(chosen)
    if scatter and (tensor.dim() == 0 or tensor.shape[0] != size):
        raise ValueError(
            f"cannot scatter shape {tuple(tensor.shape)} over {size} processes: its first dimension"
            " must have that size"
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
    mesh = mesh._on(source._stream_slots.stream)
    if source._engine is not mesh._engine:
        raise WrongMesh(f"{mesh} has other processes than {source}: fetch the values and put them")
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
                f"dimension {label!r} has size {size} in the source and {sizes.get(label, 'none')}"
                " in the target: slice or reduce it first"
            )
    goals: list[list[int]] = [[] for _ in range(len(source))]
    for index in range(len(goal)):
        here = dict(zip(goal.labels, goal.coordinates(index), strict=True))
        at = 0
        for label, size in zip(source.labels, source.sizes, strict=True):
            at = at * size + here.get(label, 0)
        goals[at].append(goal.rank_at(index))
    return goals
