"""The tree along which a buffer is passed on, seen from whoever has asked for it.

It begins the errands of the places, tells those below one where its bytes are, and finds another
source for those whose source is gone. The bytes never come here.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from mesh_rdma._collectives.tree import chunk_len, parents
from mesh_rdma._collectives.tree_node import FOLLOW, GIVE_UP, SOURCE, encode_payload, encode_source
from mesh_rdma._completions.settled_group import raise_failures
from mesh_rdma._completions.thread_pool import run_in_thread
from mesh_rdma._errors import RDMACancelled, RDMAError
from mesh_rdma._operations.remote_operation import RemoteOperation, Report
from mesh_rdma._operations.server import Command, State
from mesh_rdma._requests.error_encoding import decode_error, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mesh_rdma._buffers.buffer import RDMABuffer

__all__ = ["Relay", "machine_of"]


def machine_of(buffer: RDMABuffer) -> bytes:
    """Gives what all buffers of one machine have in common."""
    return buffer._handle.machine


class _Seat(RemoteOperation):
    """One destination: its owner copies from the seat above it."""

    def __init__(self, relay: Relay, place: int, payload: bytes) -> None:
        handle = relay.dsts[place]._handle
        super().__init__(handle, FOLLOW, payload, relay.left(), (relay.src, relay.dsts))
        self._relay = relay
        self._place = place

    def on_report(self, report: Report) -> Report:
        if report.state is not State.WAITING:
            self._relay.is_begun(self._place, report.extra)
            return report
        error = decode_error(report.extra)
        source, is_hopeless = self._relay.another(self._place)
        if source is not None:
            return self.request(SOURCE, source)
        if is_hopeless:
            return self.request(GIVE_UP, encode_error(self._relay.reason(self._place, error)))
        return report

    def forget(self) -> None:
        """Lets the owner forget what those below it have read."""
        try:
            self.request(Command.END)
        except RDMAError:
            # It is gone, or stuck: then it forgets by itself.
            return


class Relay:
    """The whole tree, as a `mesh_core.spi.Completion`."""

    def __init__(self, src: RDMABuffer, dsts: Sequence[RDMABuffer], timeout: float | None) -> None:
        self.src, self.dsts = src, list(dsts)
        self._until = None if timeout is None else time.monotonic() + timeout
        self._length = src.size()
        self._machines = [machine_of(dst) for dst in self.dsts]
        self._above = parents(self._machines, machine_of(src), self._length)
        self._seats: dict[int, _Seat] = {}
        self._progress: dict[int, bytes] = {}
        self._complete: set[int] = set()
        self._failures: dict[int, RDMAError] = {}
        self._orphans: set[int] = set()
        #: Those whose owner keeps what others read of them until it is told that all is over.
        self._kept: set[int] = set()
        #: Whom each has lost as its source, or could not reach.
        self._lost: list[set[int | None]] = [set() for _ in self.dsts]
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[], object]] = []

    def start(self) -> Relay:
        """Begins with those that copy from the source itself."""
        with self._lock:
            begun = self._begin_those([p for p, above in enumerate(self._above) if above is None])
        for seat in begun:
            seat.start()
        return self

    def left(self) -> float | None:
        """Gives the seconds that are left; None where there is no limit."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.0)

    def wait(self, timeout: float | None) -> bool:
        """Waits; says whether all have ended."""
        return self._done.wait(timeout)

    def is_done(self) -> bool:
        """Says whether all have ended."""
        return self._done.is_set()

    def outcome(self) -> None:
        """Raises what failed."""
        raise_failures(self._failures, len(self.dsts), self._is_cancelled)

    def cancel(self) -> bool:
        """Ends all; when this returns nothing is written any more."""
        with self._lock:
            if self._done.is_set():
                return False
            self._is_cancelled = True
            seats = list(self._seats.values())
        for seat in seats:
            run_in_thread(seat.cancel)
        self._done.wait()
        return any(isinstance(error, RDMACancelled) for error in self._failures.values())

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls back once all have ended."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def is_begun(self, place: int, progress: bytes) -> None:
        """A seat is at work, and says how far it is there: those below it may begin."""
        if not progress or place in self._progress:
            return
        with self._lock:
            self._progress[place] = progress
            begun = self._begin_those(self._unbegun_below(place))
        for seat in begun:
            seat.start()

    def another(self, place: int) -> tuple[bytes | None, bool]:
        """A seat has lost its source: gives another one, or none; then also whether that is all."""
        with self._lock:
            if place not in self._orphans:
                self._orphans.add(place)
                self._lost[place].add(self._above[place])
            found = next(self._sources_for(place), "none")
            if not isinstance(found, str):
                self._above[place] = found
                self._orphans.discard(place)
                return self._source(found), False
            running = self._seats.keys() - self._complete - self._failures.keys() - self._orphans
            is_hopeless = not any(self._may_follow(place, one) for one in running)
            return None, is_hopeless

    def reason(self, place: int, error: RDMAError) -> RDMAError:
        """Says why a place gets no more: what those that it copied from have failed with, if so."""
        with self._lock:
            failed = [self._failures[one] for one in self._lost[place] if one in self._failures]
        return failed[0] if failed else error

    def _begin_those(self, places: Sequence[int]) -> list[_Seat]:
        """Makes the seats of some places; whoever calls starts them when the lock is free."""
        begun = []
        for place in places:
            if self._is_cancelled:
                words = "the transfer was cancelled before it began"
                self._failures[place] = RDMACancelled(words)
                continue
            dst, source = self.dsts[place], self._source(self._above[place])
            is_followed = place in self._above
            if is_followed:
                self._kept.add(place)
            chunk = chunk_len(self._length)
            payload = encode_payload(
                dst._handle, dst._offset, self._length, chunk, is_followed, source
            )
            seat = self._seats[place] = _Seat(self, place, payload)
            seat.when_done(lambda seat=seat, place=place: self._ended(seat, place))  # type: ignore[misc]
            begun.append(seat)
        return begun

    def _source(self, above: int | None) -> bytes:
        if above is None:
            return encode_source(self.src._handle, self.src._offset, b"")
        buffer = self.dsts[above]
        progress = b"" if above in self._complete else self._progress[above]
        return encode_source(buffer._handle, buffer._offset, progress)

    def _ended(self, seat: _Seat, place: int) -> None:
        error = None
        try:
            seat.outcome()
        except RDMAError as failure:
            error = failure
        except Exception as failure:
            error = RDMAError(f"{type(failure).__name__}: {failure}")
        with self._lock:
            self._orphans.discard(place)
            if error is None:
                self._complete.add(place)
            else:
                self._failures[place] = error
            begun = self._begin_those(self._adopted(place))
            is_last = len(self._complete) + len(self._failures) == len(self.dsts)
            if is_last:
                self._done.set()
            callbacks = self._callbacks if is_last else []
        for one in begun:
            one.start()
        if is_last:
            for kept in self._kept:
                run_in_thread(self._seats[kept].forget)
            for callback in callbacks:
                callback()

    def _adopted(self, place: int) -> list[int]:
        """Gives those below a place that has ended and that have not begun, with their source."""
        below = self._unbegun_below(place)
        if place in self._failures:
            for child in below:
                self._lost[child].add(place)
                # The source itself is never a failure here: it is there to take.
                self._above[child] = next(self._sources_for(child), None)
        return below

    def _unbegun_below(self, place: int) -> list[int]:
        return [p for p, above in enumerate(self._above) if above == place and p not in self._seats]

    def _sources_for(self, place: int) -> Iterator[int | None]:
        """Gives whom a place may copy from, the nearest first."""
        lost = self._lost[place]
        machine = self._machines[place]
        able = [one for one in range(len(self.dsts)) if self._may_follow(place, one)]
        able = [one for one in able if one in self._complete or one in self._progress]
        near = [one for one in able if self._machines[one] == machine]
        near.sort(key=lambda one: one not in self._complete)
        yield from near
        above = self._above[place]
        while above is not None:
            above = self._above[above]
            if above in able:
                yield above
        if None not in lost:
            yield None
        yield from sorted(able, key=lambda one: one not in self._complete)

    def _may_follow(self, place: int, other: int) -> bool:
        """Whether a place may copy from another one, which does not wait for it in turn."""
        if other in self._lost[place] or other in self._failures:
            return False
        above: int | None = other
        while above is not None and other not in self._complete:
            if above == place:
                return False
            above = self._above[above]
        return other != place
