"""Sends a fragment to all hosts at once, and yields their answers as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError, SupervisionError
from mesh_telemetry._errors import TelemetryError, cause_of
from mesh_telemetry._query.fragment import QueriedHost, ShardAnswer

if TYPE_CHECKING:
    from mesh_core import Future
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._hosts.host_handle import HostHandle

__all__ = ["HostQueries", "label"]


class HostQueries:
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
        self._came: SimpleQueue[int | None] = SimpleQueue()
        self._open: dict[int, Future[bytes]] = {}
        for at, host in enumerate(self._hosts):
            if host.rows is not None:
                self._open[at] = host.rows.run.call_one(fragment, deadline_s)
        if len(self._open) > 1:
            for at, future in self._open.items():
                future.add_done_callback(partial(self._note, at))

    def __iter__(self) -> Iterator[QueriedHost | ShardAnswer]:
        """Yield first the hosts that were queried, then the answer of each until the deadline."""
        for host in self._hosts:
            yield QueriedHost(label(host))
        for at, host in enumerate(self._hosts):
            if at not in self._open:
                cause = host.error or "it is restarting"
                yield ShardAnswer(label(host), None, cause)
        if len(self._open) == 1:
            ((at, future),) = self._open.items()
            yield self._answer(self._hosts[at], future, self._left_s())
            return
        waiting = set(self._open)
        while waiting:
            try:
                came = self._came.get(timeout=self._left_s())
            except Empty:
                break
            if came is None:
                return
            waiting.discard(came)
            yield self._answer(self._hosts[came], self._open[came], 0.0)
        for at in waiting:
            yield self._answer(self._hosts[at], self._open[at], 0.0)

    def close(self) -> None:
        """Cancel outstanding requests; their hosts stop computing."""
        for future in self._open.values():
            with suppress(MeshError):
                future.cancel()
        self._came.put(None)

    def _note(self, at: int, _: object) -> None:
        self._came.put(at)

    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def _answer(self, host: HostHandle, future: Future[Any], timeout_s: float) -> ShardAnswer:
        try:
            return ShardAnswer(label(host), future.get(timeout_s), None)
        except TimeoutError:
            future.cancel()
            return ShardAnswer(label(host), None, "it did not answer in time")
        except MeshError as error:
            if isinstance(error, SupervisionError) and not isinstance(error, TelemetryError):
                assert host.rows is not None, "only hosts that answer were asked"
                # Only the caller that detects the failure is notified of it.
                self._coordinator.lost.broadcast(host.number, host.rows, cause_of(error))
            return ShardAnswer(label(host), None, cause_of(error))


def label(host: HostHandle) -> str:
    """Return the name of a host in a coverage."""
    return f"{host.name}/{host.number}"
