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

__all__ = ["Borrow", "Borrows", "StorageBorrows", "borrow"]


class StorageBorrows:
    """The borrows of a family.

    Attributes:
        incoming: The borrow that put it on its stream, if it is borrowed.
        outgoing: Its borrows by other streams that its own stream must take into account.
    """

    __slots__ = ("incoming", "outgoing")

    def __init__(self, incoming: BorrowState | None = None) -> None:
        self.incoming = incoming
        self.outgoing: list[BorrowState] = []


class BorrowState:
    """A family of one stream that is borrowed by another stream.

    Attributes:
        token: The identifier of the borrow in the processes.
        origin: The mesh of the tensor, on its own stream.
        goal: The same mesh on the borrowing stream.
        is_mutable: Whether the borrowing stream may write to it.
        call_site: The call site of the borrow.
        family: The family on its own stream, while the borrow lasts.
        own: The borrows of the family on the borrowing stream.
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
        self.own: StorageBorrows = StorageBorrows(self)
        #: Whether acknowledged operations are complete, which is not the case on other devices.
        self.is_on_cpu = True
        #: Whether the borrowing stream has used it.
        self.is_acquired = False
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
        return f"by stream {self.goal._stream_slots.stream.name}, {how}, here:\n{here}"

    def __del__(self) -> None:
        if self.dropped_at is not None and not self.is_settled:
            # Nothing can wait for it any more: the processes can forget it.
            self._borrows.unawaited.append((self.origin, self.token))


class Borrow:
    """The right of a stream to use a tensor of another stream, until it is dropped.

    It is also a context manager that drops the borrow on exit. A borrow that is garbage-collected
    without `drop` is dropped with a `ResourceWarning`.
    """

    __slots__ = ("__weakref__", "_borrows", "_state")

    def __init__(self, borrows: Any, state: Any) -> None:
        self._borrows: Borrows = borrows
        self._state: BorrowState = state

    def drop(self) -> None:
        """End the borrow, and all borrows of the borrowed tensor, which must not be used any more.

        The call does not wait: the stream of the tensor waits when it uses the tensor next.
        """
        self._borrows.drop(self._state)

    @property
    def is_dropped(self) -> bool:
        """Whether the borrow has ended."""
        return not self._state.lasts

    def __enter__(self) -> Borrow:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def __repr__(self) -> str:
        state = self._state
        how = "dropped" if self.is_dropped else "mutable" if state.is_mutable else "to read"
        return f"<Borrow by {state.goal._stream_slots.stream.name}, {how}>"

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if state is None or not state.lasts:
            return
        # A finalizer must not acquire the lock: the next issued operation drops the borrow.
        self._borrows.leaked.append(state)
        warnings.warn(
            "a borrow was never dropped: drop it, or use it in a with statement; it was borrowed "
            + state.description(),
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


class _BorrowedRef(Ref):
    """The slot of a borrowed tensor."""

    __slots__ = ("_dead_refs",)

    _dead_refs: list[None]

    def __del__(self) -> None:
        self._dead_refs.append(None)
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
        self.leaked: list[BorrowState] = []
        #: Dropped borrows for which no stream will wait.
        self.unawaited: list[tuple[DeviceMesh, int]] = []
        self._dead_refs: list[None] = []
        #: Dropped read-only borrows, oldest first. Each is settled when all operations issued
        #: before are done.
        self._ending: deque[BorrowState] = deque()

    def make(
        self, tensor: Tensor, goal: DeviceMesh, is_mutable: bool
    ) -> tuple[Tensor, BorrowState]:
        """Let the stream of a mesh borrow a tensor.

        Raises:
            BorrowError: Another borrow does not allow it.
        """
        engine = self._engine
        origin, stream = tensor._meta.mesh, engine.stream
        with stream.lock:
            self.check([tensor], (0,) if is_mutable else ())
            family = tensor._ref.base or tensor._ref
            token = next(self._tokens) & 0x7FFF_FFFF
            state = BorrowState(self, token, origin, goal, is_mutable, family)
            state.is_on_cpu = tensor._meta.device.type == "cpu"
            borrows = _borrows_of(family)
            if borrows is None:
                borrows = family.borrows = StorageBorrows()
            borrows.outgoing.append(state)
            storages = engine.stream_table.storages(engine.bases)
            slot = goal._stream_slots.borrow_slot(storages[family.slot])
            engine.own_slot(slot)
            ref = _BorrowedRef(slot, stream.freed)
            ref._dead_refs, ref.borrows = self._dead_refs, state.own
            self.count += 2
            engine.needs_operand_checks = True
            operand = tensor._ref.slot
            entry = self._compile("share", origin, operands=1, results=(None,), detail=is_mutable)
            stream.issue((entry.opcode, operand, token, slot))
            if engine.failed_slots:
                engine._propagate_failure(entry, (operand,), (slot,))
        return wrap(engine.metas.of_kind(goal, tensor._meta.kind), ref), state

    def drop(self, state: BorrowState) -> None:
        """End a borrow, and the borrows of the borrowed tensor.

        Raises:
            MeshError: The processes have exited.
        """
        engine = self._engine
        with engine.stream.lock:
            if not state.lasts:
                return
            if engine.stream.is_over:
                state.dropped_at, state.is_settled, state.family = 0, True, None
                return
            self._end(state)
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
        borrows_by_operand = [_borrows_of(one._ref.base or one._ref) for one in operands]
        for place, borrows in enumerate(borrows_by_operand):
            if borrows is not None:
                self._allow(borrows, place in written)
        for place, borrows in enumerate(borrows_by_operand):
            if borrows is not None:
                self._await(borrows, place in written)
        for one, borrows in zip(operands, borrows_by_operand, strict=True):
            if (
                borrows is not None
                and borrows.incoming is not None
                and not borrows.incoming.is_acquired
            ):
                self._acquire(borrows.incoming, one._ref.base or one._ref)

    def _allow(self, borrows: StorageBorrows, is_written: bool) -> None:
        state = borrows.incoming
        if state is not None and not state.lasts:
            raise BorrowEnded(
                f"a borrowed tensor is used after the borrow was dropped: drop it later, or borrow "
                f"again; it was borrowed {state.description()}"
            )
        if state is not None and is_written and not state.is_mutable:
            raise MutatingBorrow(
                f"a borrowed tensor is written to; it was borrowed {state.description()}\n"
                "borrow it with mutable=True"
            )
        for outgoing in borrows.outgoing:
            if outgoing.lasts and outgoing.is_mutable:
                raise BorrowedMutably(
                    f"a tensor is used while it is borrowed {outgoing.description()}\n"
                    "drop the borrow first"
                )
            if outgoing.lasts and is_written:
                raise MutatingBorrow(
                    f"a tensor is written to while it is borrowed {outgoing.description()}\n"
                    "drop the borrow first"
                )

    def _await(self, borrows: StorageBorrows, is_written: bool) -> None:
        """Make a stream wait for the other streams that used the same memory."""
        for outgoing in list(borrows.outgoing):
            if not outgoing.lasts and (outgoing.is_mutable or is_written):
                self._settle(outgoing)
            if outgoing.is_settled:
                borrows.outgoing.remove(outgoing)

    def _acquire(self, state: BorrowState, ref: Ref) -> None:
        state.is_acquired = True
        entry = self._compile("acquire", state.goal, operands=1, results=(None,))
        self._engine.stream.issue((entry.opcode, ref.slot, state.token, ref.slot))

    def _end(self, state: BorrowState) -> None:
        stream = self._engine.stream
        for outgoing in state.own.outgoing:
            if outgoing.lasts:
                self._end(outgoing)
        # The tensor is released only after all streams that borrowed from it are done.
        self._await(state.own, is_written=True)
        state.dropped_at, state.family = stream.issued, None
        if not state.is_acquired:
            self._issue("cancel", state.origin, state.token)
            self._settled(state)
            return
        self._issue("release", state.goal, state.token)
        state.dropped_at = stream.issued
        if not state.is_mutable and state.is_on_cpu:
            self._ending.append(state)

    def _settle(self, state: BorrowState) -> None:
        if not state.is_settled:
            self._issue("wait", state.origin, state.token)
            self._settled(state)

    def _settled(self, state: BorrowState) -> None:
        state.is_settled = True
        self.count -= 1

    def _tidy(self) -> None:
        """End borrows that are done or were garbage-collected. The caller holds the lock."""
        while self.leaked:
            state = self.leaked.pop()
            if state.lasts:
                self._end(state)
        while self._ending and self._ending[0].dropped_at <= self._engine.stream.done:  # type: ignore[operator]
            state = self._ending.popleft()
            if not state.is_settled:
                self._settled(state)
        while self.unawaited:
            self._issue("wait", *self.unawaited.pop())
            self.count -= 1
        while self._dead_refs:
            self._dead_refs.pop()
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


def _borrows_of(family: Ref) -> StorageBorrows | None:
    return getattr(family, "borrows", None)


def borrow(stream: Stream, tensor: Tensor, is_mutable: bool) -> tuple[Tensor, Borrow]:
    """Let a stream borrow a tensor of another one; see `Stream.borrow`."""
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
        states: list[BorrowState] = []
        made: Tensor = _DifferentiableBorrow.apply(tensor, stream, states)
        return made, Borrow(borrows, states[0])
    made, state = borrows.make(tensor, mesh._on(stream), is_mutable)
    if is_mutable:
        torch.autograd.graph.increment_version(tensor)
        if tensor._known_scalar is not None:
            tensor._known_scalar.family[0] = False
    return made, Borrow(borrows, state)


class _DifferentiableBorrow(torch.autograd.Function):
    """A differentiable borrow: gradients flow back to the stream of the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, stream: Stream, states: list[BorrowState]) -> Tensor:
        mesh = tensor._meta.mesh
        ctx.stream = mesh._stream_slots.stream
        made, state = mesh._engine.borrows.make(tensor, mesh._on(stream), is_mutable=False)
        states.append(state)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        borrowed, handle = borrow(ctx.stream, grads[0], is_mutable=False)
        copied = borrowed.clone()
        handle.drop()
        return copied, None, None
