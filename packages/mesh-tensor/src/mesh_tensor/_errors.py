"""Exceptions of distributed tensors."""

from __future__ import annotations

from mesh_core import MeshError

__all__ = [
    "BorrowEnded",
    "BorrowError",
    "BorrowedMutably",
    "DataDependentError",
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
    """Base class of the errors of distributed tensors.

    Errors that an operator can raise must not derive from `TypeError`: PyTorch's operators
    interpret a `TypeError` as an unsupported type of operand and discard it.
    """


class WrongMesh(TensorError, ValueError):
    """An operation received tensors of different meshes."""


class WrongStream(TensorError, ValueError):
    """An operation received tensors of several streams, or ran while another stream was active."""


class BorrowError(TensorError, RuntimeError):
    """A tensor was used in a way that a borrow does not allow."""


class MutatingBorrow(BorrowError):
    """A tensor was written to while it is borrowed for reading."""


class BorrowedMutably(BorrowError):
    """A tensor was used while another stream has borrowed it mutably."""


class BorrowEnded(BorrowError):
    """A borrowed tensor was used after its borrow was dropped."""


class LocalTensorError(TensorError, ValueError):
    """A local tensor was used with distributed tensors and is too large to be sent implicitly."""


class UnsupportedOp(TensorError, NotImplementedError):
    """An operation cannot be described to the processes."""


class DataDependentError(TensorError, RuntimeError):
    """The result of an operation depends on values in a way that is not supported."""


class RanksDisagree(TensorError, RuntimeError):
    """An operation needs one value for all ranks, but the ranks have different values."""


class PipeEnded(TensorError, RuntimeError):
    """A pipe cannot be used because its other end was dropped, has returned or has failed."""


class NoGradient(TensorError, TypeError):
    """A tensor that requires gradients was passed to something that does not return gradients."""


class NoValues(TensorError, RuntimeError):
    """A value was requested in a simulation, which has no values."""


class TraceError(TensorError, RuntimeError):
    """A function does something that a trace cannot contain, or differs from its recording."""


class OpFailed(TensorError, RuntimeError):
    """An operation failed on a rank; raised when a value that depends on it is fetched.

    The cause (`__cause__`) is the error on that rank.

    Attributes:
        op: The name of the operation.
        rank: The rank that failed. If several ranks failed, the one that reported its failure
            first.
        stack: The place in this program that issued the operation, as a traceback with the
            outermost call first.
    """

    def __init__(self, op: str, rank: int, stack: str, what: str) -> None:
        super().__init__(op, rank, stack, what)
        self.op = op
        self.rank = rank
        self.stack = stack
        self._what = what

    def __str__(self) -> str:
        return f"{self.op} failed on rank {self.rank}: {self._what}\nissued here:\n{self.stack}"


# Tracebacks show the public name, such as mesh_tensor.OpFailed.
for _error in (
    BorrowEnded,
    BorrowError,
    BorrowedMutably,
    DataDependentError,
    LocalTensorError,
    MutatingBorrow,
    NoGradient,
    NoValues,
    OpFailed,
    PipeEnded,
    RanksDisagree,
    TensorError,
    TraceError,
    UnsupportedOp,
    WrongMesh,
    WrongStream,
):
    _error.__module__ = "mesh_tensor"
