"""The hosts to which a query is sent.

If there was one host, it is used while the coordinator is still being queried for the current list.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Future
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._hosts.host_handle import HostHandle

__all__ = ["HostList"]

T = TypeVar("T")


class _HostsChanged(Exception):
    """Raised if the hosts are not the ones that were assumed."""


class HostList:
    """The current hosts.

    Args:
        coordinator: The actor that knows them.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._last: list[HostHandle] = []

    def all(self, timeout_s: float) -> list[HostHandle]:
        """Return the current hosts.

        Raises:
            TimeoutError: The coordinator did not reply in time.
        """
        return self._coordinator.hosts.call_one().get(timeout_s)

    def with_hosts(
        self,
        send: Callable[[Sequence[HostHandle], Callable[[], None], float], T],
        timeout_s: float,
    ) -> T:
        """Return the reply of the current hosts.

        Args:
            send: Sends a query. Its arguments are the hosts, a function to call after the query was
                sent, and the seconds that are left. It is called a second time if the assumed hosts
                turned out to be outdated.
            timeout_s: Seconds to wait for the coordinator.

        Raises:
            TimeoutError: The coordinator did not reply in time.
        """
        deadline = time.monotonic() + timeout_s
        current = self._coordinator.hosts.call_one()
        last = self._last
        # Most programs have one host, which does not change.
        if len(last) == 1 and last[0].rows is not None:
            try:
                reply = send(last, lambda: _check(current, last, deadline), timeout_s)
                _check(current, last, deadline)
                return reply
            except _HostsChanged:
                pass
        hosts = self._last = current.get(max(deadline - time.monotonic(), 0.0))
        return send(hosts, lambda: None, max(deadline - time.monotonic(), 0.0))


def _check(
    current: Future[list[HostHandle]], presumed: Sequence[HostHandle], deadline: float
) -> None:
    if current.get(max(deadline - time.monotonic(), 0.0)) != presumed:
        raise _HostsChanged
