"""A lane: one connected queue pair, and what is under way on it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from mesh_rdma._verbs.binding import FLUSHED, SUCCESS, Completion, QueuePair, WorkRequest

#: Of so many work requests one asks for a completion, beside the last of those posted together.
SIGNAL_EVERY = 16

#: Completions taken at a time.
POLL_LEN_MAX = 64

#: How long what is under way on a queue pair that was failed may take to be handed back. It is a
#: matter of microseconds. If it takes longer the queue pair is destroyed, and moves no byte either.
DRAIN_S = 1.0

Piece = TypeVar("Piece")


class FinishedPiece(NamedTuple, Generic[Piece]):
    """A piece whose work request has completed."""

    piece: Piece
    status: int = SUCCESS
    reason: str = ""


@dataclass
class Lane(Generic[Piece]):
    """Hands pieces to a queue pair, never more than it has room for, and tells what became of them.

    Only some ask for a completion. The queue pair works in order, so that one completion ends all
    that went before; and a failure ends the lane, with a completion for everything behind it.
    """

    pair: QueuePair
    depth: int
    now: Callable[[], float] = time.monotonic
    is_broken: bool = False
    _under_way: deque[tuple[int, Piece]] = field(default_factory=deque)
    _next_id: int = 0
    _unsignalled: int = 0

    @property
    def room(self) -> int:
        """How many more pieces may be posted."""
        return 0 if self.is_broken else self.depth - len(self._under_way)

    @property
    def under_way(self) -> list[Piece]:
        """The pieces under way, oldest first."""
        return [piece for _, piece in self._under_way]

    def post(self, pieces: Sequence[tuple[Piece, WorkRequest]]) -> None:
        """Posts pieces, each with its work request; there must be room.

        A piece that cannot be posted breaks the lane: `poll` hands back what was under way.
        """
        assert len(pieces) <= self.room
        for place, (piece, work) in enumerate(pieces, start=1):
            work.id = self._next_id
            self._next_id += 1
            self._unsignalled += 1
            work.is_signalled = place == len(pieces) or self._unsignalled == SIGNAL_EVERY
            if work.is_signalled:
                self._unsignalled = 0
            self._under_way.append((work.id, piece))
        try:
            self.pair.post([work for _, work in pieces])
        except OSError:
            # How many of them were taken is not told. The rest is handed back after these.
            self.is_broken = True
            with suppress(OSError):
                self.pair.fail()

    def poll(self) -> list[FinishedPiece[Piece]]:
        """Returns what has ended since, oldest first."""
        ended: list[FinishedPiece[Piece]] = []
        while self._under_way:
            try:
                completions = self.pair.poll(POLL_LEN_MAX)
            except OSError:
                self.is_broken = True
                break
            for completion in completions:
                self._end(completion, ended)
            if len(completions) < POLL_LEN_MAX:
                break
        return ended

    def stop(self) -> list[FinishedPiece[Piece]]:
        """Ends the lane: when this returns no byte is read or written here on its behalf."""
        self.is_broken = True
        with suppress(OSError):
            self.pair.fail()
        ended: list[FinishedPiece[Piece]] = []
        give_up = self.now() + DRAIN_S
        while self._under_way and self.now() < give_up:
            ended += self.poll()
        self.pair.close()
        ended += [FinishedPiece(piece, FLUSHED, "never handed back") for piece in self.under_way]
        self._under_way.clear()
        return ended

    def _end(self, completion: Completion, ended: list[FinishedPiece[Piece]]) -> None:
        while self._under_way:
            id, piece = self._under_way.popleft()
            if id == completion.id:
                ended.append(FinishedPiece(piece, completion.status, completion.reason))
                break
            # Nobody asked for its completion, so it went well.
            ended.append(FinishedPiece(piece))
        if completion.status != SUCCESS:
            self.is_broken = True
