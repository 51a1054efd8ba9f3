"""The parameters of collectives, which the program sends to the processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    import torch

__all__ = ["OPS", "Move", "Reduction"]

#: The reductions of PyTorch, by name.
OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


@dataclass(frozen=True)
class Reduction:
    """The parameters of a reduction.

    Attributes:
        dims: The dimensions of the mesh along which values are combined.
        op: The reduction; `stack` stacks the values.
        scatter: Whether each process gets only a part of the result.
        in_place: Whether the result is written to the operand.
        shape: The shape of the operand.
        dtype: The dtype of the operand.
        device: The device of the operand.
        out: Whether the result is written to the second operand.
    """

    dims: tuple[str, ...]
    op: str
    scatter: bool
    in_place: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    out: bool = False

    def result_shape(self, size: int) -> tuple[int, ...]:
        """Return the shape of the result for a group of `size` processes."""
        if self.op == "stack":
            return self.shape if self.scatter else (size, *self.shape)
        return self.shape[1:] if self.scatter else self.shape


@dataclass(frozen=True)
class Move:
    """The parameters of a move: source and destination ranks for each process of the source mesh.

    Attributes:
        routes: For each source rank, the ranks that receive its value.
        shape: The shape of the value.
        dtype: The dtype of the value.
        device: The device of the value, on both sides.
    """

    routes: tuple[tuple[int, tuple[int, ...]], ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
