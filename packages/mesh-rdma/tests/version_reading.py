"""A thread that reads versions and reports torn ones."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import time
import traceback
from typing import TYPE_CHECKING

import numpy as np
from stamps import Stamp, tear_in
from version_plans import STRIDE, ReaderPlan, Slice, Tally, Visit

from mesh_rdma import RDMAPeerDied, RDMATimeout, Version, VersionedReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from stamps import Bytes

    from mesh_rdma import RDMABuffer

__all__ = ["Reading"]

_LINGER_S = 0.02
_PAUSE_S = 0.0002
_HURRY_S = 0.0005
# Longer than the publication and the read of a version take.
_HOLD_S = 40.0
# A second version may never be published while all threads hold two.
_SECOND_S = 0.02


class Reading:
    """The reads by one thread of the versions of one writer.

    Args:
        reader: The reader of the versions.
        plan: The visits to make.
        life: The number with which the writer stamps its versions.
    """

    def __init__(self, reader: VersionedReader, plan: ReaderPlan, life: int) -> None:
        self._plan = plan
        self._life = life
        self._reader = reader
        self._buffer = np.empty(reader.size(), np.uint8)
        self._last = -1
        self.tally = Tally(plan.buffer)

    def run(self, is_endless: bool, visited: Callable[[], None]) -> None:
        """Make all visits and report each; end early if the writer dies or a check fails."""
        visits = itertools.cycle(self._plan.visits) if is_endless else self._plan.visits
        try:
            reader = self._reader
            head = reader._head.via(self._plan.transport)
            self._reader = VersionedReader(head, reader._nbytes, reader._area_nbytes)
            for visit in visits:
                getattr(self, f"_{visit.verb}")(visit)
                visited()
        except RDMAPeerDied:
            self.tally.has_lost = True
        except Exception:
            self.tally.failure = traceback.format_exc()

    def _whole(self, visit: Visit) -> None:
        """Read all of a version that newer ones have followed."""
        with self._hold(visit) as version:
            self._linger(visit)
            version.buffer.read_into(self._buffer).get()
            self._expect(self._buffer, version.step)

    def _slices(self, visit: Visit) -> None:
        """Read parts of a version, each over a different transport."""
        with self._hold(visit) as version:
            self._linger(visit)
            self._read_slices(version.buffer, visit.slices, version.step)
            # Read again after newer versions have been published.
            self._linger(visit)
            self._read_slices(version.buffer, visit.slices[:1], version.step)

    def _view(self, visit: Visit) -> None:
        """View a version, also after its lease has ended and after its writer has died."""
        version = self._hold(visit)
        if version.buffer.backend not in ("arena", "memory"):
            version.buffer.read_into(self._buffer).get()
            seen = self._buffer
        else:
            seen = np.frombuffer(version.view(), np.uint8)
        step = version.step
        version.release()
        self._linger(visit)
        self._expect(seen, step)

    def _latest(self, visit: Visit) -> None:
        """Read the version that is the latest one when the read begins."""
        step = self._reader.read_into(self._buffer, after=self._after(visit), timeout=_HOLD_S).get()
        self._take(step)
        self._expect(self._buffer, step)

    def _hurry(self, visit: Visit) -> None:
        """Read with timeouts that usually expire; their leases end, too."""
        with self._hold(visit) as version:
            try:
                version.buffer.read_into(self._buffer, timeout=_HURRY_S).get()
            except RDMATimeout:
                self.tally.late += 1
            else:
                self._expect(self._buffer, version.step)
        try:
            step = self._reader.read_into(self._buffer, timeout=_HURRY_S).get()
        except RDMATimeout:
            self.tally.late += 1
        else:
            self._take(step)
            self._expect(self._buffer, step)

    def _twice(self, visit: Visit) -> None:
        """Hold two leases; the end of one does not end the other."""
        first = self._hold(visit)
        try:
            second = self._reader.hold(after=first.step, timeout=_SECOND_S)
        except RDMATimeout:
            second = self._reader.hold(timeout=_HOLD_S)
        self._take(second.step)
        first.release()
        self._linger(visit)
        with second:
            self._read_slices(second.buffer, visit.slices, second.step)

    def _sent(self, visit: Visit) -> None:
        """Check that a received handle of a version holds it, too."""
        with self._hold(visit) as version:
            step = version.step
            buffer: RDMABuffer = pickle.loads(pickle.dumps(version.buffer))
        self._linger(visit)
        self._read_slices(buffer, visit.slices, step)

    def _after(self, visit: Visit) -> int | None:
        return None if visit.skip is None else self._last + visit.skip * STRIDE

    def _hold(self, visit: Visit) -> Version:
        after = self._after(visit)
        version = self._reader.hold(after=after, timeout=_HOLD_S)
        assert after is None or version.step > after
        self._take(version.step)
        return version

    def _take(self, step: int) -> None:
        self._advance(step)
        self.tally.steps.add(step)

    def _advance(self, step: int) -> None:
        assert step % STRIDE == 0, f"step {step} was given up"
        assert step >= self._last, f"step {step} after step {self._last}"
        self._last = step

    def _linger(self, visit: Visit) -> None:
        """Wait briefly for newer versions; the writer may have no free area for them."""
        until = time.monotonic() + _LINGER_S
        goal = self._last + visit.linger * STRIDE
        # The held version is checked even if the writer dies.
        with contextlib.suppress(RDMAPeerDied):
            while self._last < goal and time.monotonic() < until:
                step = self._reader.step()
                assert step is not None
                self._advance(step)
                time.sleep(_PAUSE_S)

    def _read_slices(self, buffer: RDMABuffer, slices: tuple[Slice, ...], step: int) -> None:
        reads = []
        for part in slices:
            transport = "memory" if self._plan.transport == "memory" else part.transport
            destination = np.empty(part.stop - part.start, np.uint8)
            copied = buffer.via(transport)[part.start : part.stop]
            reads.append((part.start, destination, copied.read_into(destination)))
        for start, destination, reading in reads:
            reading.get()
            self._expect(destination, step, start)

    def _expect(self, found: Bytes, step: int, start: int = 0) -> None:
        tear = tear_in(found, Stamp(self._life, step), start)
        assert tear is None, tear
        self.tally.reads += 1
        self.tally.nbytes += len(found)
