"""Which hosts a question goes to: while the keeper is asked, those of the last one are presumed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Future
    from mesh_telemetry._keeper import HostHandle, Keeper

__all__ = ["HostList"]

T = TypeVar("T")


class _Changed(Exception):
    """There are other hosts than were presumed."""


class HostList:
    """The hosts that there are.

    Args:
        keeper: Who knows them.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._last: list[HostHandle] = []

    def all(self, timeout_s: float) -> list[HostHandle]:
        """Gives them as they are now.

        Raises:
            TimeoutError: The keeper has not answered in time.
        """
        return self._keeper.hosts.call_one().get(timeout_s)

    def asked(
        self,
        ask: Callable[[Sequence[HostHandle], Callable[[], None], float], T],
        timeout_s: float,
    ) -> T:
        """Gives what the hosts answer that there are now.

        Args:
            ask: Asks hosts. It is given them, what it calls when it has sent something to them,
                and how many seconds are left. It may be called twice: for a presumed host that
                turned out to be another one, and again.
            timeout_s: For how long the keeper is waited for, in seconds.

        Raises:
            TimeoutError: The keeper has not answered in time.
        """
        deadline = time.monotonic() + timeout_s
        listing = self._keeper.hosts.call_one()
        last = self._last
        # Most programs have one host, and it stays.
        if len(last) == 1 and last[0].rows is not None:
            try:
                answer = ask(last, lambda: _check(listing, last, deadline), timeout_s)
                _check(listing, last, deadline)
                return answer
            except _Changed:
                pass
        hosts = self._last = listing.get(max(deadline - time.monotonic(), 0.0))
        return ask(hosts, lambda: None, max(deadline - time.monotonic(), 0.0))


def _check(
    listing: Future[list[HostHandle]], presumed: Sequence[HostHandle], deadline: float
) -> None:
    if listing.get(max(deadline - time.monotonic(), 0.0)) != presumed:
        raise _Changed
