"""A work queue: one connected queue pair and its pieces in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from mesh_rdma._verbs.binding import FLUSHED, SUCCESS, Completion, QueuePair, WorkRequest

#: One of this many work requests requests a completion, as does the last one of each batch.
SIGNAL_EVERY = 16

#: The maximum number of completions per poll.
POLL_LEN_MAX = 64

#: How long a failed queue pair may take to return its outstanding requests, which usually takes
#: microseconds. After this time, it is destroyed, which also ensures that it transfers no byte.
DRAIN_S = 1.0

Piece = TypeVar("Piece")


class FinishedPiece(NamedTuple, Generic[Piece]):
    """A piece whose work request has completed."""

    piece: Piece
    status: int = SUCCESS
    reason: str = ""


@dataclass
class WorkQueue(Generic[Piece]):
    """Posts pieces to a queue pair, up to its capacity, and reports their results.

    Only some work requests request a completion. The queue pair executes them in order, so a
    completion implies that all previous requests have succeeded. A failure ends the queue; all
    requests after the failed one complete with an error.
    """

    pair: QueuePair
    depth: int
    now: Callable[[], float] = time.monotonic
    is_broken: bool = False
    _in_flight: deque[tuple[int, Piece]] = field(default_factory=deque)
    _next_id: int = 0
    _unsignalled: int = 0

    @property
    def free_slots(self) -> int:
        """The number of pieces that can be posted."""
        return 0 if self.is_broken else self.depth - len(self._in_flight)

    @property
    def in_flight(self) -> list[Piece]:
        """The pieces in flight, oldest first."""
        return [piece for _, piece in self._in_flight]

    def post(self, pieces: Sequence[tuple[Piece, WorkRequest]]) -> None:
        """Post pieces, each with its work request; the queue must have capacity for them.

        If posting fails, the queue is broken; `poll` then returns the pieces in flight.
        """
        assert len(pieces) <= self.free_slots
        for place, (piece, work) in enumerate(pieces, start=1):
            work.id = self._next_id
            self._next_id += 1
            self._unsignalled += 1
            work.is_signalled = place == len(pieces) or self._unsignalled == SIGNAL_EVERY
            if work.is_signalled:
                self._unsignalled = 0
            self._in_flight.append((work.id, piece))
        try:
            self.pair.post([work for _, work in pieces])
        except OSError:
            # The number of accepted requests is unknown. `poll` reports the others after these.
            self.is_broken = True
            with suppress(OSError):
                self.pair.fail()

    def poll(self) -> list[FinishedPiece[Piece]]:
        """Return the pieces that have ended, oldest first."""
        ended: list[FinishedPiece[Piece]] = []
        while self._in_flight:
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
        """Stop the queue; afterwards, it reads and writes no local byte."""
        self.is_broken = True
        with suppress(OSError):
            self.pair.fail()
        ended: list[FinishedPiece[Piece]] = []
        give_up = self.now() + DRAIN_S
        while self._in_flight and self.now() < give_up:
            ended += self.poll()
        self.pair.close()
        ended += [FinishedPiece(piece, FLUSHED, "never handed back") for piece in self.in_flight]
        self._in_flight.clear()
        return ended

    def _end(self, completion: Completion, ended: list[FinishedPiece[Piece]]) -> None:
        while self._in_flight:
            id, piece = self._in_flight.popleft()
            if id == completion.id:
                ended.append(FinishedPiece(piece, completion.status, completion.reason))
                break
            # The piece did not request a completion, so the later one implies its success.
            ended.append(FinishedPiece(piece))
        if completion.status != SUCCESS:
            self.is_broken = True
