"""Combines many tensors at once: concatenates them into few large collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._errors import TensorError
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["reduce_tree", "reduce_tree_"]

#: The default bucket size of PyTorch's `DistributedDataParallel`.
_BUCKET_LEN = 25 << 20


def reduce_tree(tree: Any, combine: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the tree of results; `combine` is a differentiable reduction of a 1-D tensor."""
    leaves, spec = pytree.tree_flatten(tree)
    for bucket in _buckets(leaves):
        for place, result in zip(bucket, _combined(leaves, bucket, combine), strict=True):
            leaves[place] = result
    return pytree.tree_unflatten(leaves, spec)


def reduce_tree_(tree: Any, combine: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Write the results into the operands; return the tree itself."""
    leaves = pytree.tree_leaves(tree)
    if torch.is_grad_enabled() and any(type(one) is Tensor and one.requires_grad for one in leaves):
        raise ValueError("a tensor that needs gradients cannot be reduced in place: use reduce")
    for bucket in _buckets(leaves):
        results = _combined(leaves, bucket, combine)
        torch._foreach_copy_([leaves[place] for place in bucket], results)
    return tree


def _combined(
    leaves: Sequence[Any], bucket: Sequence[int], combine: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    operands = [leaves[place] for place in bucket]
    flat = combine(torch.cat([one.reshape(-1) for one in operands]))
    parts = torch.split(flat, [one.numel() for one in operands])
    return [part.view(one.shape) for part, one in zip(parts, operands, strict=True)]


def _buckets(leaves: Sequence[Any]) -> Iterator[list[int]]:
    """Yield the positions of tensors of one kind, in order, as many as fit into a bucket."""
    open_ones: dict[Any, list[int]] = {}
    lengths: dict[Any, int] = {}
    for place, one in enumerate(leaves):
        if not isinstance(one, torch.Tensor):
            continue
        if type(one) is not Tensor:
            raise TensorError("cannot reduce a local tensor: put it on the mesh first")
        kind = one._meta.mesh, one.dtype, one.device
        length = one.numel() * one.element_size()
        if kind in open_ones and lengths[kind] + length > _BUCKET_LEN:
            yield open_ones.pop(kind)
        open_ones.setdefault(kind, []).append(place)
        lengths[kind] = length if len(open_ones[kind]) == 1 else lengths[kind] + length
    yield from open_ones.values()
