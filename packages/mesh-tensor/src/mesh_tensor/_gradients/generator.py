"""A backward pass that is computed only as far as the next gradient requires.

`torch.autograd.grad` returns when all gradients are computed. Here the program can reduce or apply
the gradient of the last layer while the processes still compute those of earlier layers, and it can
drop each gradient before the next one exists.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

__all__ = ["grad_generator"]

# An edge of the autograd graph: a node and the number of its input.
_Edge = tuple[Any, int]


def grad_generator(
    roots: torch.Tensor | Sequence[torch.Tensor],
    with_respect_to: Sequence[torch.Tensor],
    grad_roots: Sequence[torch.Tensor | None] | None = None,
) -> Iterator[torch.Tensor | None]:
    """Yield the gradients of some tensors, one at a time.

    Each step runs only the part of the backward pass that the next gradient depends on. Request the
    gradients in the order in which a backward pass reaches the tensors, which is usually the
    reverse of the order of the layers.

    Hooks of tensors and modules are not called, and nothing is accumulated in `.grad`. The graph
    stays usable as long as the roots exist.

    Args:
        roots: The tensors that are differentiated, such as a loss.
        with_respect_to: The tensors whose gradients are wanted, leaves or intermediate results.
        grad_roots: The gradients of the roots. Default: ones, for roots with one element.

    Yields:
        The gradient of each tensor of `with_respect_to`, with its shape; None for a tensor that the
        roots do not depend on.

    Raises:
        ValueError: The numbers of `roots` and `grad_roots` differ, a root does not require a
            gradient, or a root has more than one element and no gradient.

    Example:
        >>> for weight, gradient in zip(reversed(weights), grad_generator(loss, weights[::-1])):
        ...     weight.sub_(gradient.reduce("dp", "avg"), alpha=0.1)
    """
    roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    wanted = [_edge_of(one) for one in with_respect_to]
    starts = [_edge_of(root) for root in roots]
    gradients = _root_gradients(roots, starts, grad_roots)
    return _gradients(wanted, starts, gradients)


def _edge_of(tensor: torch.Tensor) -> _Edge | None:
    """Return the edge at which the gradient of a tensor arrives; None if it has no gradient."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    if not tensor.requires_grad:
        return None
    # The node that accumulates the gradient of a leaf is reached through any view of it.
    with torch.enable_grad():
        view: Any = tensor.view_as(tensor)
    return view.grad_fn.next_functions[0][0], 0


def _root_gradients(
    roots: list[torch.Tensor],
    starts: list[_Edge | None],
    grad_roots: Sequence[torch.Tensor | None] | None,
) -> list[torch.Tensor]:
    given = [None] * len(roots) if grad_roots is None else list(grad_roots)
    if len(given) != len(roots):
        raise ValueError(f"there are {len(given)} grad_roots for {len(roots)} roots")
    found = []
    for root, start, gradient in zip(roots, starts, given, strict=True):
        if start is None:
            raise ValueError("a root does not require a gradient: nothing depends on a parameter")
        if gradient is None:
            if root.numel() != 1:
                raise ValueError(
                    f"a root has shape {tuple(root.shape)}: pass its gradient in grad_roots, or "
                    "reduce it to one element"
                )
            gradient = torch.ones_like(root)
        found.append(gradient)
    return found


def _gradients(
    wanted: list[_Edge | None], starts: list[_Edge | None], gradients: list[torch.Tensor]
) -> Iterator[torch.Tensor | None]:
    left = Counter(edge for edge in wanted if edge is not None)
    backward = _Backward([edge for edge in starts if edge is not None], left.keys())
    for edge, gradient in zip(starts, gradients, strict=True):
        if edge is not None:
            backward.add(edge, gradient)
    for edge in wanted:
        if edge is None:
            yield None
            continue
        left[edge] -= 1
        # The caller may drop a gradient before it requests the next one.
        yield backward.gradient_of(edge, is_last=left[edge] == 0)


class _Backward:
    """One backward pass, which runs node by node.

    Args:
        starts: The edges at which it begins.
        kept: The edges at which the requested gradients arrive.
    """

    def __init__(self, starts: list[_Edge], kept: Iterable[_Edge]) -> None:
        # The number of gradients that each node still waits for.
        self._missing: dict[Any, int] = {}
        self._inputs: dict[Any, list[torch.Tensor | None]] = {}
        # Nodes that can run, those created last first, as the autograd engine orders them.
        self._ready: list[tuple[int, int, Any]] = []
        self._kept: dict[_Edge, torch.Tensor | None] = dict.fromkeys(kept)
        self._done: set[Any] = set()
        seen = {node for node, _ in starts}
        stack = list(seen)
        while stack:
            for node, _ in stack.pop().next_functions:
                if node is None:
                    continue
                self._missing[node] = self._missing.get(node, 0) + 1
                if node not in seen:
                    seen.add(node)
                    stack.append(node)
        for node, _ in starts:
            self._missing[node] = self._missing.get(node, 0) + 1

    def add(self, edge: _Edge, gradient: torch.Tensor | None) -> None:
        """Add a gradient that arrives at an edge."""
        node, number = edge
        arrived = self._inputs.setdefault(node, [])
        arrived += [None] * (number + 1 - len(arrived))
        before = arrived[number]
        if before is None or gradient is None:
            arrived[number] = gradient if before is None else before
        else:
            arrived[number] = before + gradient
        self._missing[node] -= 1
        if self._missing[node] == 0:
            order = -node._sequence_nr() if hasattr(node, "_sequence_nr") else 0
            heapq.heappush(self._ready, (order, id(node), node))

    def gradient_of(self, edge: _Edge, *, is_last: bool) -> torch.Tensor | None:
        """Run nodes until the gradient at an edge is complete, and return it."""
        while edge[0] not in self._done and self._ready:
            self._run(heapq.heappop(self._ready)[2])
        return self._kept.pop(edge) if is_last else self._kept[edge]

    def _run(self, node: Any) -> None:
        arrived = self._inputs.pop(node)
        self._done.add(node)
        for number, gradient in enumerate(arrived):
            if (node, number) in self._kept:
                self._kept[node, number] = gradient
        if not node.next_functions:
            return
        # A function that is written in Python has its backward pass in this method.
        run = getattr(node, "apply", node)
        with torch.no_grad():
            # Functions of one result return a tensor, others a tuple.
            made = run(*arrived)
        gradients = made if isinstance(made, tuple) else (made,)
        for edge, gradient in zip(node.next_functions, gradients, strict=False):
            if edge[0] is not None:
                self.add(edge, None if gradient is None else _fitting(edge, gradient))


def _fitting(edge: _Edge, gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient with the shape and type of the tensor that an edge belongs to.

    A function may return the gradient of an operand before it was broadcast, as the autograd engine
    permits.
    """
    node, number = edge
    wanted = node._input_metadata[number]
    if gradient.shape != wanted.shape:
        gradient = gradient.sum_to_size(wanted.shape)
    return gradient if gradient.dtype == wanted.dtype else gradient.to(wanted.dtype)
