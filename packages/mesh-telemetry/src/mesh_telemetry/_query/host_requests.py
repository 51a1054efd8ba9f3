"""Sends a fragment to all hosts at once, and yields their replies as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError, SupervisionError
from mesh_telemetry._errors import TelemetryError, cause_of
from mesh_telemetry._query.fragment import FragmentReply, QueriedHost

if TYPE_CHECKING:
    from mesh_core import Future
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._hosts.host_handle import HostHandle

__all__ = ["HostRequests", "label"]


class HostRequests:
    """A fragment that is sent to all hosts when the instance is created.

    Args:
        coordinator: The actor that is notified of lost hosts.
        hosts: The hosts.
        fragment: The fragment, pickled.
        deadline_s: The time that the hosts may take, in seconds.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        hosts: Sequence[HostHandle],
        fragment: bytes,
        deadline_s: float,
    ) -> None:
        self._coordinator = coordinator
        self._deadline = time.monotonic() + deadline_s
        self._hosts = hosts
        self._completed: SimpleQueue[int | None] = SimpleQueue()
        self._open: dict[int, Future[bytes]] = {}
        for at, host in enumerate(self._hosts):
            if host.rows is not None:
                self._open[at] = host.rows.run.call_one(fragment, deadline_s)
        if len(self._open) > 1:
            for at, future in self._open.items():
                future.add_done_callback(partial(self._on_done, at))

    def __iter__(self) -> Iterator[QueriedHost | FragmentReply]:
        """Yield first the hosts that were queried, then the reply of each until the deadline."""
        for host in self._hosts:
            yield QueriedHost(label(host))
        for at, host in enumerate(self._hosts):
            if at not in self._open:
                cause = host.error or "it is restarting"
                yield FragmentReply(label(host), None, cause)
        if len(self._open) == 1:
            ((at, future),) = self._open.items()
            yield self._reply(self._hosts[at], future, self._left_s())
            return
        waiting = set(self._open)
        while waiting:
            try:
                completed = self._completed.get(timeout=self._left_s())
            except Empty:
                break
            if completed is None:
                return
            waiting.discard(completed)
            yield self._reply(self._hosts[completed], self._open[completed], 0.0)
        for at in waiting:
            yield self._reply(self._hosts[at], self._open[at], 0.0)

    def close(self) -> None:
        """Cancel outstanding requests; their hosts stop computing."""
        for future in self._open.values():
            with suppress(MeshError):
                future.cancel()
        self._completed.put(None)

    def _on_done(self, at: int, _: object) -> None:
        self._completed.put(at)

    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def _reply(self, host: HostHandle, future: Future[Any], timeout_s: float) -> FragmentReply:
        try:
            return FragmentReply(label(host), future.get(timeout_s), None)
        except TimeoutError:
            future.cancel()
            return FragmentReply(label(host), None, "it did not reply in time")
        except MeshError as error:
            if isinstance(error, SupervisionError) and not isinstance(error, TelemetryError):
                assert host.rows is not None, "only hosts that replied were queried"
                # Only the caller that detects the failure is notified of it.
                self._coordinator.lost.broadcast(host.number, host.rows, cause_of(error))
            return FragmentReply(label(host), None, cause_of(error))


def label(host: HostHandle) -> str:
    """Return the name of a host in a coverage."""
    return f"{host.name}/{host.number}"
