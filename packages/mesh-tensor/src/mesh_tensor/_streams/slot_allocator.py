"""The streams of the program in one engine: separate slots, frees and requests for each."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from mesh_core.spi import CompletionFuture
from mesh_tensor._instructions.completion import DependentCompletion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_core import Future, ValueMesh
    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._instructions.compiled_op_cache import CacheEntry
    from mesh_tensor._instructions.instruction_stream import InstructionStream
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._streams.stream import Stream

__all__ = ["StreamSlots", "StreamTable"]


class StreamSlots:
    """The slots of one stream in one engine.

    Attributes:
        number: The number of the stream in the engine; 0 is the default stream.
        stream: The stream.
        free_slots: Slots that its next values can use. Each stream has its own free slots, so it
            never gets a slot that another stream still uses.
        borrowed: The slots of borrowed tensors, each with the slot that owns the storage.
        pending_free: Freed slots of borrowed tensors, each with the number of operations issued by
            then. A slot is reused when all of these operations are done, because the owner of its
            storage may be queried until then.
        free: The compiled op that frees a value; the default stream has the opcode `FREE` instead.
    """

    __slots__ = (
        "_instructions",
        "borrowed",
        "free",
        "free_slots",
        "number",
        "pending_free",
        "stream",
    )

    def __init__(
        self, number: int, stream: Stream, instructions: InstructionStream, free_slots: list[int]
    ) -> None:
        self.number = number
        self.stream = stream
        self._instructions = instructions
        self.free_slots = free_slots
        self.free: CacheEntry | None = None
        self.borrowed: dict[int, int] = {}
        self.pending_free: deque[tuple[int, int]] = deque()

    def take_slot(self) -> int:
        """Return a slot for a result. The caller holds the lock."""
        if self.free_slots:
            return self.free_slots.pop()
        return self._instructions.new_slot(self)

    def put_back(self, slot: int) -> None:
        """Add a slot that was freed. The caller holds the lock."""
        if slot in self.borrowed:
            self.pending_free.append((self._instructions.issued, slot))
        else:
            self.free_slots.append(slot)

    def borrow_slot(self, storage: int) -> int:
        """Return a slot for a tensor that shares storage with another stream. Requires the lock."""
        while self.pending_free and self.pending_free[0][0] <= self._instructions.done:
            _, slot = self.pending_free.popleft()
            del self.borrowed[slot]
            self.free_slots.append(slot)
        slot = self.take_slot()
        self.borrowed[slot] = storage
        self._instructions.stream_slots[slot] = self
        return slot


class StreamTable:
    """The streams of one engine.

    Args:
        engine: The engine.
        default: The default stream.
    """

    def __init__(self, engine: Engine, default: Stream) -> None:
        self._engine = engine
        instructions = engine.stream
        self.default = StreamSlots(0, default, instructions, instructions.free_slots)
        self._slots_of = {default: self.default}
        self._announced: set[tuple[DeviceMesh, tuple[str, ...]]] = set()

    @property
    def are_many(self) -> bool:
        """Whether the program uses more than the default stream."""
        return len(self._slots_of) > 1

    def of(self, stream: Stream | None) -> StreamSlots:
        """Return the slots of a stream; for None, those of the default stream.

        Raises:
            MeshError: The processes have exited.
        """
        if stream is None:
            return self.default
        found = self._slots_of.get(stream)
        return found or self._create(stream)

    def announce(self, groups: Sequence[tuple[DeviceMesh, tuple[str, ...]]]) -> None:
        """Have all processes create groups now, in the same order, independently of the streams.

        Raises:
            MeshError: The processes have exited.
        """
        if not self.are_many:
            return
        for mesh, dims in groups:
            if (mesh, dims) not in self._announced:
                self._announced.add((mesh, dims))
                self._engine._define(None, mesh, None, kind="groups", name="groups", detail=dims)

    def storages(self, bases: list[int]) -> list[int]:
        """Return for each slot the slot that owns its storage, also across borrows."""
        found = bases
        for stream_slots in self._slots_of.values():
            if stream_slots.borrowed:
                found = [stream_slots.borrowed.get(base, base) for base in found]
        return found

    def endpoint(self, name: str, stream_slots: StreamSlots, workers: Any = None) -> Any:
        """Return an endpoint for requests about a stream's values, executed in its order."""
        workers = workers or self._engine._workers
        if self.are_many:
            return _StreamEndpoint(self._engine, workers.query, stream_slots.number, name)
        return getattr(workers, name)

    def _create(self, stream: Stream) -> StreamSlots:
        engine = self._engine
        instructions = engine.stream
        with instructions.lock:
            if stream in self._slots_of:
                return self._slots_of[stream]
            # The actor itself executes everything that was issued before the first additional
            # stream.
            instructions.flush()
            stream_slots = StreamSlots(len(self._slots_of), stream, instructions, [])
            whole = engine.mesh(engine._all, stream_slots)
            stream_slots.free = engine._define(
                None, whole, None, kind="free", name="free", operands=1
            )
            self._slots_of[stream] = stream_slots
        return stream_slots


class _StreamEndpoint:
    """An endpoint for values of one stream, with the verbs of endpoints that Mesh uses."""

    def __init__(self, engine: Engine, query: Any, stream_number: int, name: str) -> None:
        self._engine = engine
        self._query = query
        self._first = (stream_number, name)

    def call(self, *args: Any) -> Future[ValueMesh[Any]]:
        return self._with_failures(self._query.call(*self._first, *args))

    def call_one(self, *args: Any) -> Future[Any]:
        return self._with_failures(self._query.call_one(*self._first, *args))

    def choose(self, *args: Any) -> Future[Any]:
        return self._with_failures(self._query.choose(*self._first, *args))

    def stream(self, *args: Any) -> Iterable[Future[Any]]:
        return map(self._with_failures, self._query.stream(*self._first, *args))

    def _with_failures(self, answer: Future[Any]) -> Future[Any]:
        return CompletionFuture(_ReplyWithFailures(self._engine, answer))


class _ReplyWithFailures(DependentCompletion):
    """A reply that first records the failures that it carries."""

    def __init__(self, engine: Engine, answer: Future[Any]) -> None:
        super().__init__(answer)
        self._engine = engine

    def outcome(self) -> Any:
        """Return the value, or raise the error of the process."""
        reply = self._answer.get()
        if not hasattr(reply, "items"):
            self._engine.record_failures(reply.failures)
            return reply.value
        for _, one in reply.items():
            self._engine.record_failures(one.failures)
        return type(reply)(reply.extent, [one.value for _, one in reply.items()])
