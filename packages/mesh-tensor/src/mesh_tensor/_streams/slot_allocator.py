"""What the streams of the program are to one engine: slots, words and questions of their own."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from mesh_core.spi import future_of
from mesh_tensor._engine.completion import DependentCompletion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_core import Future, ValueMesh
    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._engine.op_stream import OpStream
    from mesh_tensor._engine.plan_cache import Issue
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._streams.stream import Stream

__all__ = ["Lane", "Lanes"]


class Lane:
    """One stream of one engine.

    Attributes:
        number: What it is called there; 0 is the default one.
        stream: The stream.
        vacant: Slots that its next values may have. What another stream is not yet done with is
            not among them, as each has its own.
        borrowed: The slots of what it has borrowed, and the slots of whose storage that is.
        leaving: Those of them that are free, and how much had been issued by then. They are used
            again when all that is done, as until then it is asked whose storage it was.
        free: The plan by which it lets go of a value; the default one has a word for that.
    """

    __slots__ = ("_words", "borrowed", "free", "leaving", "number", "stream", "vacant")

    def __init__(self, number: int, stream: Stream, words: OpStream, vacant: list[int]) -> None:
        self.number = number
        self.stream = stream
        self._words = words
        self.vacant = vacant
        self.free: Issue | None = None
        self.borrowed: dict[int, int] = {}
        self.leaving: deque[tuple[int, int]] = deque()

    def take_slot(self) -> int:
        """Gives a slot for a result; the lock is held."""
        if self.vacant:
            return self.vacant.pop()
        return self._words.new_slot(self)

    def put_back(self, slot: int) -> None:
        """Takes a slot that is free; the lock is held."""
        if slot in self.borrowed:
            self.leaving.append((self._words.issued, slot))
        else:
            self.vacant.append(slot)

    def borrow_slot(self, storage: int) -> int:
        """Gives a slot for what has the storage of one of another stream; the lock is held."""
        while self.leaving and self.leaving[0][0] <= self._words.done:
            _, slot = self.leaving.popleft()
            del self.borrowed[slot]
            self.vacant.append(slot)
        slot = self.take_slot()
        self.borrowed[slot] = storage
        self._words.lanes[slot] = self
        return slot


class Lanes:
    """The streams of one engine.

    Args:
        engine: Whose.
        default: The stream of programs without any.
    """

    def __init__(self, engine: Engine, default: Stream) -> None:
        self._engine = engine
        words = engine.stream
        self.default = Lane(0, default, words, words.vacant)
        self._lanes = {default: self.default}
        self._announced: set[tuple[DeviceMesh, tuple[str, ...]]] = set()

    @property
    def are_many(self) -> bool:
        """Whether there are more than the default one."""
        return len(self._lanes) > 1

    def of(self, stream: Stream | None) -> Lane:
        """Gives that of a stream; the default one where none is said.

        Raises:
            MeshError: The processes are gone.
        """
        if stream is None:
            return self.default
        found = self._lanes.get(stream)
        return found or self._made(stream)

    def announce(self, groups: Sequence[tuple[DeviceMesh, tuple[str, ...]]]) -> None:
        """Has processes make groups now, all of them in one order, and not as streams come to it.

        Raises:
            MeshError: The processes are gone.
        """
        if not self.are_many:
            return
        for mesh, dims in groups:
            if (mesh, dims) not in self._announced:
                self._announced.add((mesh, dims))
                self._engine._define(None, mesh, None, kind="groups", name="groups", detail=dims)

    def storages(self, bases: list[int]) -> list[int]:
        """Gives by slot the slot whose storage it has, through borrows as well."""
        found = bases
        for lane in self._lanes.values():
            if lane.borrowed:
                found = [lane.borrowed.get(base, base) for base in found]
        return found

    def endpoint(self, name: str, lane: Lane, workers: Any = None) -> Any:
        """Gives what answers a question about values of a stream, in the stream's order."""
        workers = workers or self._engine._workers
        if self.are_many:
            return _Asking(self._engine, workers.ask, lane.number, name)
        return getattr(workers, name)

    def _made(self, stream: Stream) -> Lane:
        engine = self._engine
        words = engine.stream
        with words.lock:
            if stream in self._lanes:
                return self._lanes[stream]
            # What went before is done by who has done it so far.
            words.flush()
            lane = Lane(len(self._lanes), stream, words, [])
            whole = engine.mesh(engine._all, lane)
            lane.free = engine._define(None, whole, None, kind="free", name="free", operands=1)
            self._lanes[stream] = lane
        return lane


class _Asking:
    """An endpoint for values of one stream, with the verbs that are used of endpoints."""

    def __init__(self, engine: Engine, ask: Any, lane: int, name: str) -> None:
        self._engine = engine
        self._ask = ask
        self._first = (lane, name)

    def call(self, *args: Any) -> Future[ValueMesh[Any]]:
        return self._heard(self._ask.call(*self._first, *args))

    def call_one(self, *args: Any) -> Future[Any]:
        return self._heard(self._ask.call_one(*self._first, *args))

    def choose(self, *args: Any) -> Future[Any]:
        return self._heard(self._ask.choose(*self._first, *args))

    def stream(self, *args: Any) -> Iterable[Future[Any]]:
        return map(self._heard, self._ask.stream(*self._first, *args))

    def _heard(self, answer: Future[Any]) -> Future[Any]:
        return future_of(_Heard(self._engine, answer))


class _Heard(DependentCompletion):
    """An answer, once the failures that come with it are noted."""

    def __init__(self, engine: Engine, answer: Future[Any]) -> None:
        super().__init__(answer)
        self._engine = engine

    def outcome(self) -> Any:
        """Gives it, or raises what was raised there."""
        told = self._answer.get()
        if not hasattr(told, "items"):
            self._engine.hear(told.failures)
            return told.value
        for _, one in told.items():
            self._engine.hear(one.failures)
        return type(told)(told.extent, [one.value for _, one in told.items()])
