"""Borrows: a tensor of one stream on another stream, and the access rules for both.

Tensors that share memory form a family, which is identified by the value that owns the memory. A
borrowed tensor is a separate family on the other stream. Whether an operation is allowed depends on
the families of its operands, which are checked only while borrows exist.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from mesh_tensor._errors import (
    BorrowedMutably,
    BorrowEnded,
    LocalTensorError,
    MutatingBorrow,
    NoGradient,
)
from mesh_tensor._instructions.call_site import capture_call_site, format_call_site
from mesh_tensor._tensor.ref import Ref
from mesh_tensor._tensor.tensor import Tensor, wrap

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._instructions.call_site import CallSite
    from mesh_tensor._instructions.compiled_op_cache import CacheEntry
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._streams.stream import Stream

__all__ = ["Borrow", "Borrows", "Share", "borrow"]


class Share:
    """The borrows of a family.

    Attributes:
        loan: The loan that put it on its stream, if it is borrowed.
        lent: Its loans to other streams that its own stream must take into account.
    """

    __slots__ = ("lent", "loan")

    def __init__(self, loan: Loan | None = None) -> None:
        self.loan = loan
        self.lent: list[Loan] = []


class Loan:
    """A family of one stream that is lent to another stream.

    Attributes:
        token: The identifier of the loan in the processes.
        origin: The mesh of the tensor, on its own stream.
        goal: The same mesh on the borrowing stream.
        is_mutable: Whether the borrowing stream may write to it.
        call_site: The call site of the borrow.
        family: The family on its own stream, while the loan lasts.
        own: The share of the family on the borrowing stream.
    """

    def __init__(
        self,
        borrows: Borrows,
        token: int,
        origin: DeviceMesh,
        goal: DeviceMesh,
        is_mutable: bool,
        family: Ref,
    ) -> None:
        self._borrows = borrows
        self.token = token
        self.origin, self.goal = origin, goal
        self.is_mutable = is_mutable
        self.call_site: CallSite = capture_call_site()
        self.family: Ref | None = family
        self.own: Share = Share(self)
        #: Whether acknowledged operations are complete, which is not the case on other devices.
        self.is_on_cpu = True
        #: Whether the borrowing stream has used it.
        self.is_taken = False
        #: The number of operations issued when it was dropped.
        self.dropped_at: int | None = None
        #: Whether the tensor's own stream no longer needs to wait.
        self.is_settled = False

    @property
    def lasts(self) -> bool:
        """Whether it was not dropped yet."""
        return self.dropped_at is None

    def description(self) -> str:
        """Return a description for error messages."""
        how = "to be written to" if self.is_mutable else "to be read"
        here = format_call_site(self.call_site)
        return f"by stream {self.goal._lane.stream.name}, {how}, here:\n{here}"

    def __del__(self) -> None:
        if self.dropped_at is not None and not self.is_settled:
            # Nothing can wait for it any more: the processes can forget it.
            self._borrows.unminded.append((self.origin, self.token))


class Borrow:
    """The right of a stream to use a tensor of another stream, until it is dropped.

    It is also a context manager that drops the borrow on exit. A borrow that is garbage-collected
    without `drop` is dropped with a `ResourceWarning`.
    """

    __slots__ = ("__weakref__", "_borrows", "_loan")

    def __init__(self, borrows: Any, loan: Any) -> None:
        self._borrows: Borrows = borrows
        self._loan: Loan = loan

    def drop(self) -> None:
        """End the borrow, and all borrows of the borrowed tensor, which must not be used any more.

        The call does not wait: the stream of the tensor waits when it uses the tensor next.
        """
        self._borrows.drop(self._loan)

    @property
    def is_dropped(self) -> bool:
        """Whether the borrow has ended."""
        return not self._loan.lasts

    def __enter__(self) -> Borrow:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def __repr__(self) -> str:
        loan = self._loan
        how = "dropped" if self.is_dropped else "mutable" if loan.is_mutable else "to read"
        return f"<Borrow by {loan.goal._lane.stream.name}, {how}>"

    def __del__(self) -> None:
        loan = getattr(self, "_loan", None)
        if loan is None or not loan.lasts:
            return
        # A finalizer must not acquire the lock: the next issued operation drops the borrow.
        self._borrows.forgotten.append(loan)
        warnings.warn(
            "a borrow was never dropped: drop it, or use it in a with statement; it was borrowed "
            + loan.description(),
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


class _BorrowedRef(Ref):
    """The slot of a borrowed tensor."""

    __slots__ = ("_gone",)

    _gone: list[None]

    def __del__(self) -> None:
        self._gone.append(None)
        super().__del__()


class Borrows:
    """The borrows of one engine.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tokens = itertools.count(1)
        self._entries: dict[tuple[str, DeviceMesh, Any], CacheEntry] = {}
        #: The number of borrows and borrowed tensors that operations must be checked against.
        self.count = 0
        #: Borrows that were garbage-collected without `drop`.
        self.forgotten: list[Loan] = []
        #: Dropped loans for which no stream will wait.
        self.unminded: list[tuple[DeviceMesh, int]] = []
        self._gone: list[None] = []
        #: Dropped read-only loans, oldest first. Each is settled when all operations issued before
        #: are done.
        self._ending: deque[Loan] = deque()

    def make(self, tensor: Tensor, goal: DeviceMesh, is_mutable: bool) -> tuple[Tensor, Loan]:
        """Lend a tensor to the stream of a mesh.

        Raises:
            BorrowError: Another borrow does not allow it.
        """
        engine = self._engine
        origin, stream = tensor._meta.mesh, engine.stream
        with stream.lock:
            self.check([tensor], (0,) if is_mutable else ())
            family = tensor._ref.base or tensor._ref
            token = next(self._tokens) & 0x7FFF_FFFF
            loan = Loan(self, token, origin, goal, is_mutable, family)
            loan.is_on_cpu = tensor._meta.device.type == "cpu"
            share = _share_of(family)
            if share is None:
                share = family.share = Share()
            share.lent.append(loan)
            storages = engine.lanes.storages(engine.bases)
            slot = goal._lane.borrow_slot(storages[family.slot])
            engine.own_slot(slot)
            ref = _BorrowedRef(slot, stream.freed)
            ref._gone, ref.share = self._gone, loan.own
            self.count += 2
            engine.needs_operand_checks = True
            operand = tensor._ref.slot
            entry = self._compile("give", origin, operands=1, results=(None,), detail=is_mutable)
            stream.issue((entry.opcode, operand, token, slot))
            if engine.failed_slots:
                engine._propagate_failure(entry, (operand,), (slot,))
        return wrap(engine.metas.of_kind(goal, tensor._meta.kind), ref), loan

    def drop(self, loan: Loan) -> None:
        """End a loan, and the loans of the tensor that it lent.

        Raises:
            MeshError: The processes have exited.
        """
        engine = self._engine
        with engine.stream.lock:
            if not loan.lasts:
                return
            if engine.stream.is_over:
                loan.dropped_at, loan.is_settled, loan.family = 0, True, None
                return
            self._end(loan)
            engine.needs_operand_checks = True

    def check(self, operands: Sequence[Any], written: Collection[int]) -> None:
        """Check that operands may be used, and issue the waits that must precede the operation.

        Args:
            operands: Tensors and opaque objects.
            written: The indexes of the operands that the operation writes to.

        Raises:
            BorrowError: A borrow does not allow the operation.
        """
        self._tidy()
        shares = [_share_of(one._ref.base or one._ref) for one in operands]
        for place, share in enumerate(shares):
            if share is not None:
                self._allow(share, place in written)
        for place, share in enumerate(shares):
            if share is not None:
                self._await(share, place in written)
        for one, share in zip(operands, shares, strict=True):
            if share is not None and share.loan is not None and not share.loan.is_taken:
                self._take(share.loan, one._ref.base or one._ref)

    def _allow(self, share: Share, is_written: bool) -> None:
        loan = share.loan
        if loan is not None and not loan.lasts:
            raise BorrowEnded(
                f"a borrowed tensor is used after the borrow was dropped: drop it later, or borrow "
                f"again; it was borrowed {loan.description()}"
            )
        if loan is not None and is_written and not loan.is_mutable:
            raise MutatingBorrow(
                f"a borrowed tensor is written to; it was borrowed {loan.description()}\n"
                "borrow it with mutable=True"
            )
        for lent in share.lent:
            if lent.lasts and lent.is_mutable:
                raise BorrowedMutably(
                    f"a tensor is used while it is borrowed {lent.description()}\n"
                    "drop the borrow first"
                )
            if lent.lasts and is_written:
                raise MutatingBorrow(
                    f"a tensor is written to while it is borrowed {lent.description()}\n"
                    "drop the borrow first"
                )

    def _await(self, share: Share, is_written: bool) -> None:
        """Make a stream wait for the other streams that used the same memory."""
        for lent in list(share.lent):
            if not lent.lasts and (lent.is_mutable or is_written):
                self._settle(lent)
            if lent.is_settled:
                share.lent.remove(lent)

    def _take(self, loan: Loan, ref: Ref) -> None:
        loan.is_taken = True
        entry = self._compile("take", loan.goal, operands=1, results=(None,))
        self._engine.stream.issue((entry.opcode, ref.slot, loan.token, ref.slot))

    def _end(self, loan: Loan) -> None:
        stream = self._engine.stream
        for lent in loan.own.lent:
            if lent.lasts:
                self._end(lent)
        # The loan is returned only after all streams that borrowed from it are done.
        self._await(loan.own, is_written=True)
        loan.dropped_at, loan.family = stream.issued, None
        if not loan.is_taken:
            self._issue("give_up", loan.origin, loan.token)
            self._settled(loan)
            return
        self._issue("return", loan.goal, loan.token)
        loan.dropped_at = stream.issued
        if not loan.is_mutable and loan.is_on_cpu:
            self._ending.append(loan)

    def _settle(self, loan: Loan) -> None:
        if not loan.is_settled:
            self._issue("wait", loan.origin, loan.token)
            self._settled(loan)

    def _settled(self, loan: Loan) -> None:
        loan.is_settled = True
        self.count -= 1

    def _tidy(self) -> None:
        """End loans that are done or were garbage-collected. The caller holds the lock."""
        while self.forgotten:
            loan = self.forgotten.pop()
            if loan.lasts:
                self._end(loan)
        while self._ending and self._ending[0].dropped_at <= self._engine.stream.done:  # type: ignore[operator]
            loan = self._ending.popleft()
            if not loan.is_settled:
                self._settled(loan)
        while self.unminded:
            self._issue("wait", *self.unminded.pop())
            self.count -= 1
        while self._gone:
            self._gone.pop()
            self.count -= 1

    def _issue(self, kind: str, mesh: DeviceMesh, token: int) -> None:
        self._engine.stream.issue((self._compile(kind, mesh).opcode, token))

    def _compile(self, kind: str, mesh: DeviceMesh, **fields: Any) -> CacheEntry:
        key = kind, mesh, fields.get("detail")
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = self._engine._define(
                None, mesh, None, kind=kind, name=f"borrow({kind})", numbers=1, **fields
            )
        return found


def _share_of(family: Ref) -> Share | None:
    return getattr(family, "share", None)


def borrow(stream: Stream, tensor: Tensor, is_mutable: bool) -> tuple[Tensor, Borrow]:
    """Lend a tensor to another stream; see `Stream.borrow`."""
    if type(tensor) is not Tensor:
        raise LocalTensorError("only distributed tensors can be borrowed: put it on a mesh first")
    needs_grad = tensor.requires_grad and torch.is_grad_enabled()
    if needs_grad and is_mutable:
        raise NoGradient(
            "a tensor that needs gradients cannot be borrowed with mutable=True: detach it, or"
            " borrow it under torch.no_grad()"
        )
    mesh = tensor._meta.mesh
    borrows = mesh._engine.borrows
    if needs_grad:
        loans: list[Loan] = []
        made: Tensor = _Lend.apply(tensor, stream, loans)
        return made, Borrow(borrows, loans[0])
    made, loan = borrows.make(tensor, mesh._on(stream), is_mutable)
    if is_mutable:
        torch.autograd.graph.increment_version(tensor)
        if tensor._known_scalar is not None:
            tensor._known_scalar.family[0] = False
    return made, Borrow(borrows, loan)


class _Lend(torch.autograd.Function):
    """A differentiable loan: gradients flow back to the stream of the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, stream: Stream, loans: list[Loan]) -> Tensor:
        mesh = tensor._meta.mesh
        ctx.stream = mesh._lane.stream
        made, loan = mesh._engine.borrows.make(tensor, mesh._on(stream), is_mutable=False)
        loans.append(loan)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        lent, loan = borrow(ctx.stream, grads[0], is_mutable=False)
        copied = lent.clone()
        loan.drop()
        return copied, None, None
