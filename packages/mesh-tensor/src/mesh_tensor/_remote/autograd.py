"""Gradients through code that runs in the processes: recorded there, requested by the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._remote.function import RemoteFunction, remote
from mesh_tensor._remote.opaque_ref import OpaqueRef
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ForwardState", "bridge", "record", "remote_autograd_function"]

#: Shape, strides, dtype and device of a tensor whose gradient is requested.
_Like = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]


class ForwardState:
    """The state that a process keeps between a forward pass and its backward pass."""

    __slots__ = ("inputs", "outputs", "parameters")

    def __init__(
        self,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        parameters: list[torch.Tensor],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.parameters = parameters


def record(
    function: Callable[..., Any],
    needs: Sequence[bool],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: Sequence[torch.Tensor] = (),
) -> tuple[Any, OpaqueRef]:
    """Run a function in its process with autograd enabled; return its results and its state.

    Args:
        function: The function.
        needs: For each tensor among the arguments, whether its gradient will be requested.
        args: The positional arguments.
        kwargs: The keyword arguments.
        parameters: Other tensors whose gradients will be requested.
    """
    left, inputs = list(needs), []

    def leaf(one: torch.Tensor) -> torch.Tensor:
        one = one.detach()
        if left.pop(0):
            inputs.append(one.requires_grad_())
        return one

    args, kwargs = pytree.tree_map_only(torch.Tensor, leaf, (args, kwargs))
    with torch.enable_grad():
        result = function(*args, **kwargs)
    outputs = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
    plain = pytree.tree_map_only(torch.Tensor, lambda one: one.detach(), result)
    return plain, OpaqueRef(ForwardState(inputs, outputs, list(parameters)))


def _forward(
    function: Any, needs: tuple[bool, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    is_class = isinstance(function, type) and issubclass(function, torch.autograd.Function)
    return record(function.apply if is_class else function, needs, args, kwargs)


def _empty(forward_state: OpaqueRef, like: Sequence[_Like], gradients: Sequence[Any]) -> list[Any]:
    return [
        torch.empty_strided(shape, strides, dtype=dtype, device=device)
        for shape, strides, dtype, device in like
    ]


@remote(propagate=_empty)
def _backward(
    forward_state: OpaqueRef, like: Sequence[_Like], gradients: Sequence[Any]
) -> list[Any]:
    """Run backward in the process; return the gradients of inputs, then of parameters."""
    kept: ForwardState = forward_state.value
    pairs = [
        (output, gradient)
        for output, gradient in zip(kept.outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    if pairs:
        torch.autograd.backward([one for one, _ in pairs], [one for _, one in pairs])
    wanted = [*kept.inputs, *kept.parameters]
    found = [one.grad for one in wanted]
    for one in wanted:
        one.grad = None
    return [
        torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
        for gradient, (shape, _, dtype, device) in zip(found, like, strict=True)
    ]


def bridge(
    forward: Callable[..., Any],
    head: tuple[Any, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: Sequence[torch.Tensor] = (),
    anchor: torch.Tensor | None = None,
) -> Any:
    """Call a remote function that returns results and a `ForwardState`; connect both to autograd.

    Args:
        forward: The function. It is called with `head`, a flag for each tensor that tells whether
            its gradient is needed, and the arguments.
        head: The first arguments.
        args: The positional arguments, which may contain tensors anywhere.
        kwargs: The keyword arguments.
        parameters: Other tensors of the processes that the function uses, in the order of the
            forward state's parameters.
        anchor: A tensor that requires gradients, so that backward runs even if nothing else
            requires them. It receives no gradient.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    wants = torch.is_grad_enabled()
    needs = tuple(wants and one.requires_grad for one in tensors)
    box: list[Any] = []

    def run() -> list[Any]:
        bare = [one.detach() if isinstance(one, torch.Tensor) else one for one in leaves]
        result, forward_state = forward(*head, needs, *pytree.tree_unflatten(bare, spec))
        found, result_spec = pytree.tree_flatten(result)
        box.extend((result_spec, forward_state))
        return found

    inputs = [one for one, need in zip(tensors, needs, strict=True) if need]
    wanted = [*inputs, *parameters]
    if wants and (wanted or anchor is not None):
        results = _Bridge.apply(run, box, anchor, *wanted)
    else:
        with torch.no_grad():
            results = run()
    return pytree.tree_unflatten(list(results), box[0])


class _Bridge(torch.autograd.Function):
    """Runs forward in the processes, and backward when gradients arrive."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[], list[Any]], box: list[Any], _: Any, *wanted: Tensor
    ) -> Any:
        found = run()
        ctx.set_materialize_grads(False)
        ctx.forward_state = box.pop()
        ctx.like = tuple(
            (tuple(one.shape), tuple(one.stride()), one.dtype, one.device) for one in wanted
        )
        ctx.is_tensor = [isinstance(one, torch.Tensor) for one in found]
        plain = [
            one
            for one in found
            if isinstance(one, torch.Tensor) and not (one.is_floating_point() or one.is_complex())
        ]
        ctx.mark_non_differentiable(*plain)
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        forward_state, ctx.forward_state = ctx.forward_state, None
        if forward_state is None:
            raise RuntimeError(
                "backward ran through a remote function twice: its process keeps the saved tensors"
                " for one backward only"
            )
        given = [one for one, is_one in zip(gradients, ctx.is_tensor, strict=True) if is_one]
        return None, None, None, *_backward(forward_state, ctx.like, given)


def remote_autograd_function(function: Any) -> Callable[..., Any]:
    """Wrap a `torch.autograd.Function`, or any function of tensors, as a differentiable function.

    Forward and backward run in the processes. Values saved for backward stay there and are freed
    with the program's autograd graph. Backward can run once for each forward.

    Args:
        function: A subclass of `torch.autograd.Function`, or a function that PyTorch can
            differentiate.

    Returns:
        A function of distributed tensors.
    """
    run: RemoteFunction[..., Any] = remote(_forward)

    def apply(*args: Any, **kwargs: Any) -> Any:
        return bridge(run, (function,), args, kwargs)

    return apply
