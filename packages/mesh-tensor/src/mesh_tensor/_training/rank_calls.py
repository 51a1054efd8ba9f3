"""Calls to all ranks of a training, which are aborted if one of them fails or hangs."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from mesh_core import HostDied, this_proc, wait
from mesh_tensor._training.progress_watch import POLL_S
from mesh_tensor._training.recovery import Interrupted, describe_failure, has_failed
from mesh_tensor._training.rendezvous_store import StoreServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mesh_core import Future
    from mesh_tensor._training.members import Members
    from mesh_tensor._training.progress_watch import ProgressWatch

__all__ = ["REPLY_S", "RankCalls"]

T = TypeVar("T")

#: The time in which a living rank replies, in seconds.
REPLY_S = 2.0
# The time limit for calls that do not train.
_SETUP_S = 120.0
# The time that ranks have to end a call after their collectives were aborted, or after another rank
# has ended its call: this many times the longest step, but at least this many seconds. A rank that
# takes longer hangs. If no step has ended for long, the ranks that do not hang only wait for
# collectives, which end at about the same time.
_ABORT_STEPS, _ABORT_S, _ABORT_STALLED_S = 3, 5.0, 1.0


class RankCalls:
    """Collects the results of all ranks, or interrupts all of them.

    Args:
        members: The members of the training.
        progress: The progress of their steps.
    """

    def __init__(self, members: Members, progress: ProgressWatch) -> None:
        self._members = members
        self._progress = progress
        self._store: Any = None

    def on_each(self, name: str) -> dict[int, Future[Any]]:
        """Call an endpoint of the trainer of each rank."""
        return {
            rank: getattr(member.trainer, name).call_one()
            for rank, member in enumerate(self._members)
        }

    def open_store(self) -> StoreServer:
        """Return a new store, in which the ranks form a process group; the last one is closed."""
        self.close_store()
        self._store = this_proc().spawn("rendezvous_store", StoreServer)
        store: StoreServer = self._store
        return store

    def close_store(self) -> None:
        """Close the store of the process group, if any."""
        if self._store is not None:
            self._store.close.broadcast()
            self._store.stop().get()
            self._store = None

    def collect(self, futures: Mapping[int, Future[T]]) -> dict[int, T]:
        """Return the results of all ranks.

        Args:
            futures: The calls, by rank.

        Raises:
            Interrupted: A rank has failed or hangs. No rank waits for another one any more.
        """
        until = time.monotonic() + _SETUP_S
        return self._collect(futures, lambda: time.monotonic() >= until)

    def collect_steps(
        self, futures: Mapping[int, Future[T]], on_poll: Callable[[], None]
    ) -> dict[int, T]:
        """Return the results of all ranks that train.

        Args:
            futures: The calls that train, by rank.
            on_poll: Is called every `POLL_S` seconds, or less often, while they train.

        Raises:
            Interrupted: A rank has failed, or the ranks make no progress. No rank waits for another
                one any more.
        """

        def have_stalled() -> bool:
            self._progress.poll()
            on_poll()
            return self._progress.has_stalled()

        self._progress.start_waiting()
        results = self._collect(futures, have_stalled)
        self._progress.poll()
        return results

    def kill(self, rank: int) -> None:
        """Kill the process of a rank, unless its host is dead."""
        with suppress(HostDied):
            member = self._members[rank]
            member.procs.kill(member.index)

    def _collect(
        self, futures: Mapping[int, Future[T]], are_late: Callable[[], bool]
    ) -> dict[int, T]:
        """Return the results of all ranks, unless one fails or they are late."""
        left = dict(futures)
        is_late = False
        while left and not is_late:
            wait(left.values(), first=1, timeout=POLL_S)
            done = [rank for rank, future in left.items() if future.done()]
            if any(has_failed(left.pop(rank)) for rank in done):
                break
            is_late = are_late()
        else:
            if not is_late:
                return {rank: future.get() for rank, future in futures.items()}
        reported_at = time.time()
        hung = self._abort(futures, is_late=is_late)
        raise Interrupted(describe_failure(futures, hung, reported_at, is_late=is_late))

    def _abort(self, futures: Mapping[int, Future[Any]], *, is_late: bool) -> list[int]:
        """Abort the calls of all ranks; kill and return the ranks whose calls do not end.

        A rank that is killed loses its state, and the copies that it holds.
        """
        for member in self._members:
            member.monitor.abort.broadcast()
        if self._store is not None:
            self._store.close.broadcast()
        total = left = sum(not future.done() for future in futures.values())
        self._progress.start_waiting()
        while pending := wait(futures.values(), timeout=POLL_S).pending:
            if len(pending) < left:
                left = len(pending)
                self._progress.start_waiting()
            # On a busy machine, all ranks may be slow. They must not be killed together.
            least_s = _ABORT_STALLED_S if is_late and left < total else _ABORT_S
            limit_s = max(_ABORT_STEPS * self._progress.longest_step_s, least_s)
            if self._progress.waited_s() >= limit_s:
                break
            self._progress.poll()
        hung = [rank for rank, future in futures.items() if not future.done()]
        for rank in hung:
            self.kill(rank)
        wait([futures[rank] for rank in hung], timeout=REPLY_S)
        self._progress.poll()
        return hung
