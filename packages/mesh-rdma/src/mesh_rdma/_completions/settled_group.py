"""A group of transfers that continues when some fail, and reports all failures at the end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mesh_rdma._completions.completion import ThreadedCompletion, wait_for_each
from mesh_rdma._completions.thread_pool import run_in_thread
from mesh_rdma._errors import RDMACancelled, RDMAError, RDMAIncomplete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core.spi import Completion

__all__ = ["SettledGroup", "raise_failures"]


def raise_failures(failures: dict[int, RDMAError], count: int, is_cancelled: bool) -> None:
    """Raise the failures of a group, if there are any.

    Raises:
        RDMAIncomplete: Some transfers failed.
        RDMACancelled: The group was cancelled, and every failure is a cancellation.
    """
    if not failures:
        return
    errors = list(failures.values())
    if is_cancelled and all(isinstance(error, RDMACancelled) for error in errors):
        raise errors[0]
    raise RDMAIncomplete(tuple(sorted(failures.items(), key=lambda one: one[0])), count)


class SettledGroup(ThreadedCompletion):
    """Settles when all parts have; reports their failures as one `RDMAIncomplete`.

    Args:
        parts: Each transfer, with the indices in the caller's list that fail with it.
        count: The length of that list.
    """

    def __init__(self, parts: Sequence[tuple[Completion[None], Sequence[int]]], count: int) -> None:
        super().__init__()
        self._parts = parts
        self._count = count
        self._left = len(parts) + 1
        self._failures: dict[int, RDMAError] = {}
        self._defect: BaseException | None = None
        self._is_cancelled = False
        for part, places in parts:
            part.when_done(lambda part=part, places=places: self._ended(part, places))  # type: ignore[misc]
        self._ended(None, ())

    def wait(self, timeout: float | None) -> bool:
        """Wait until all parts have settled; return whether they have."""
        return wait_for_each([part for part, _ in self._parts], self._done, timeout)

    def outcome(self) -> None:
        """Raise the failures of the parts, if any."""
        super().outcome()
        raise_failures(self._failures, self._count, self._is_cancelled)

    def cancel(self) -> bool:
        """Cancel the parts that have not settled; after this returns no byte is written."""
        self._is_cancelled = True
        ended: list[bool] = []
        threads = threading.Semaphore(0)

        def end(part: Completion[None]) -> None:
            try:
                ended.append(part.cancel())
            finally:
                threads.release()

        # Each cancellation may wait for another process, so all of them run concurrently.
        for part, _ in self._parts:
            run_in_thread(lambda part=part: end(part))  # type: ignore[misc]
        for _ in self._parts:
            threads.acquire()
        return any(ended)

    def _ended(self, part: Completion[None] | None, places: Sequence[int]) -> None:
        failed: BaseException | None = None
        try:
            if part is not None:
                part.outcome()
        except BaseException as error:
            failed = error
        with self._lock:
            if isinstance(failed, RDMAError):
                for place in places:
                    self._failures.setdefault(place, failed)
            elif failed is not None:
                self._defect = failed
            self._left -= 1
            if self._left:
                return
        self._settle(self._defect)
