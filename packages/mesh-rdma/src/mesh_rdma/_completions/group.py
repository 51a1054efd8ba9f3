"""A group of transfers that fails with the first one that fails."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mesh_rdma._completions.completion import ThreadedCompletion, wait_for_each
from mesh_rdma._errors import RDMACancelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core.spi import Completion

__all__ = ["CompletionGroup"]


class CompletionGroup(ThreadedCompletion):
    """Settles when all parts have; the first part that fails cancels the others."""

    def __init__(self, parts: Sequence[Completion[None]]) -> None:
        super().__init__()
        self._parts = parts
        self._left = len(parts)
        self._first: BaseException | None = None
        for part in parts:
            part.when_done(lambda part=part: self._ended(part))  # type: ignore[misc]

    def wait(self, timeout: float | None) -> bool:
        """Wait until all parts have settled; return whether they have."""
        return wait_for_each(self._parts, self._done, timeout)

    def cancel(self) -> bool:
        """Cancel the parts that have not settled."""
        return any([part.cancel() for part in self._parts])

    def _ended(self, part: Completion[None]) -> None:
        failed: BaseException | None = None
        try:
            part.outcome()
        except BaseException as error:
            failed = error
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
            is_first = failed is not None and self._first is None
            # Replace a cancellation that another failure caused, because it hides the cause.
            if failed is not None and (is_first or isinstance(self._first, RDMACancelled)):
                self._first = failed
        if is_first:
            threading.Thread(target=self._end_others, args=(part,), daemon=True).start()
        if is_last:
            self._settle(self._first)

    def _end_others(self, failed: Completion[None]) -> None:
        for part in self._parts:
            if part is not failed:
                part.cancel()
