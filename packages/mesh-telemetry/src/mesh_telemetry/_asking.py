"""Sends a fragment to all hosts at once, and gives their answers as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError, SupervisionError
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._fragment import Asked, Fragment, ShardAnswer
from mesh_telemetry._keeper import cause_of

if TYPE_CHECKING:
    from mesh_core import Future
    from mesh_telemetry._keeper import HostHandle, Keeper

__all__ = ["HostAsking"]


class HostAsking:
    """A fragment that is under way to all hosts; it was sent when this is made.

    Args:
        keeper: Who knows the hosts.
        fragment: What they are asked.

    Raises:
        MeshError: The keeper is gone.
        TimeoutError: It does not answer in time.
    """

    def __init__(self, keeper: Keeper, fragment: Fragment) -> None:
        self._keeper = keeper
        self._deadline = time.monotonic() + fragment.deadline_s
        self._hosts: list[HostHandle] = keeper.hosts.call_one().get(fragment.deadline_s)
        self._came: SimpleQueue[int | None] = SimpleQueue()
        self._open: dict[int, Future[bytes]] = {}
        for at, host in enumerate(self._hosts):
            if host.rows is not None:
                self._open[at] = host.rows.run.call_one(fragment)
        for at, future in self._open.items():
            future.add_done_callback(partial(self._note, at))

    def __iter__(self) -> Iterator[Asked | ShardAnswer]:
        """Gives first who is asked, then what each answers until the deadline."""
        for host in self._hosts:
            yield Asked(_label(host))
        for at, host in enumerate(self._hosts):
            if at not in self._open:
                cause = host.error or "it is being started again"
                yield ShardAnswer(_label(host), None, cause)
        waiting = set(self._open)
        while waiting:
            try:
                came = self._came.get(timeout=max(self._deadline - time.monotonic(), 0.0))
            except Empty:
                break
            if came is None:
                return
            waiting.discard(came)
            yield self._answer(self._hosts[came], self._open[came])
        for at in waiting:
            self._open[at].cancel()
            yield ShardAnswer(_label(self._hosts[at]), None, "it has not answered in time")

    def close(self) -> None:
        """Gives up what has not been answered: hosts compute it no further."""
        for future in self._open.values():
            with suppress(MeshError):
                future.cancel()
        self._came.put(None)

    def _note(self, at: int, _: object) -> None:
        self._came.put(at)

    def _answer(self, host: HostHandle, future: Future[Any]) -> ShardAnswer:
        try:
            return ShardAnswer(_label(host), future.get(0), None)
        except MeshError as error:
            if isinstance(error, SupervisionError) and not isinstance(error, TelemetryError):
                assert host.rows is not None, "only hosts that answer were asked"
                # Who is told first is the only one who is told.
                self._keeper.lost.broadcast(host.number, host.rows, cause_of(error))
            return ShardAnswer(_label(host), None, cause_of(error))


def _label(host: HostHandle) -> str:
    return f"{host.name}/{host.number}"
