"""What goes wrong with distributed tensors."""

from __future__ import annotations

from mesh_core import MeshError

__all__ = [
    "BorrowEnded",
    "BorrowError",
    "BorrowedMutably",
    "DataDependentError",
    "EngineClosed",
    "LocalTensorError",
    "MutatingBorrow",
    "NoGradient",
    "NoValues",
    "OpFailed",
    "PipeEnded",
    "RanksDisagree",
    "TensorError",
    "TraceError",
    "UnsupportedOp",
    "WrongMesh",
    "WrongStream",
]


class TensorError(MeshError):
    """Something was asked of distributed tensors that cannot be done, or that failed.

    None of these is a TypeError: torch's operators take one for "not this type of operand", and say
    nothing of it.
    """


class WrongMesh(TensorError, ValueError):
    """Tensors of different meshes met in one operation."""


class WrongStream(TensorError, ValueError):
    """Tensors of different streams met in one operation, or those of one on another one."""


class BorrowError(TensorError, RuntimeError):
    """A tensor was used in a way that a borrow of it does not allow."""


class MutatingBorrow(BorrowError):
    """A tensor was written to while it is borrowed to be read."""


class BorrowedMutably(BorrowError):
    """A tensor was used while another stream may write to it."""


class BorrowEnded(BorrowError):
    """A borrowed tensor was used after its borrow was dropped."""


class LocalTensorError(TensorError, ValueError):
    """A tensor of this process met distributed ones, and is too large to be sent along."""


class UnsupportedOp(TensorError, NotImplementedError):
    """An operation cannot be described to other processes."""


class DataDependentError(TensorError, RuntimeError):
    """The result depends on values in a way that is not allowed here."""


class RanksDisagree(TensorError, RuntimeError):
    """One answer was wanted for all ranks, and they have different ones."""


class EngineClosed(TensorError, RuntimeError):
    """The processes of a tensor are gone, and its values with them."""


class PipeEnded(TensorError, RuntimeError):
    """Nothing goes through a pipe any more: its other end was dropped, returned or failed."""


class NoGradient(TensorError, TypeError):
    """A tensor that needs gradients went where none come back from."""


class NoValues(TensorError, RuntimeError):
    """A value was asked for in a simulation, where there are none."""


class TraceError(TensorError, RuntimeError):
    """A function does what a trace cannot have in it, or no longer does what was recorded."""


class OpFailed(TensorError, RuntimeError):
    """An operation failed on a rank; it is raised where something that depends on it is fetched.

    The cause (`__cause__`) is the error of that rank.

    Attributes:
        op: Which operation.
        rank: Of the ranks where it failed, the one that said so first.
        stack: Where this program issued it, outermost call first, as `traceback` prints it.
    """

    def __init__(self, op: str, rank: int, stack: str, what: str) -> None:
        super().__init__(op, rank, stack, what)
        self.op = op
        self.rank = rank
        self.stack = stack
        self._what = what

    def __str__(self) -> str:
        return f"{self.op} failed on rank {self.rank}: {self._what}\nissued here:\n{self.stack}"
