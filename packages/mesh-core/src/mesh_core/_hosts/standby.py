"""Standby workers, which a job reserves to replace hosts that die.

A standby worker serves no job. The program renews the reservation of the worker periodically. Until
the reservation expires, the worker serves no other program. After the program is gone, the worker
becomes available. If the job has an orphan grace period, the reservation includes it.
"""

from __future__ import annotations

import threading
import time

from mesh_core._core import request_attach
from mesh_core._hosts.attach_request import HOLD, RELEASE, AttachRequest
from mesh_core._hosts.route import Route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._configuration.config import Config
    from mesh_core._core import Keys
    from mesh_core._hosts.address import Address
    from mesh_core._runtime.runtime import Runtime

__all__ = ["StandbyWorker", "StandbyWorkers", "join_limit_s"]

# The number of renewals of a reservation per lease.
_PER_LEASE = 3
_RELEASE_LIMIT_S = 1.0
# The pause between two requests to a worker that is still busy, in seconds.
_RETRY_S = 0.1
# A machine under load needs up to this many seconds to join, even if its lease is shorter.
_JOIN_S = 5.0


class StandbyWorker:
    """One standby worker.

    Attributes:
        address: The address of the worker.
        gateway: The address of the worker that forwards connections to it; None for none.
        keys: The keys with which both sides authenticate.
        config: The configuration at the time of the attachment.
        is_held: Whether it has confirmed the reservation; None before the first request.
        is_over: Set when it is no longer a standby worker.
        orphan_grace_s: The orphan grace period in seconds, which extends the reservation.
        number: Its number among the standby workers of the job.
    """

    __slots__ = (
        "address",
        "config",
        "gateway",
        "is_held",
        "is_over",
        "keys",
        "number",
        "orphan_grace_s",
    )

    def __init__(
        self,
        address: Address,
        gateway: Address | None,
        keys: Keys,
        config: Config,
        orphan_grace_s: float,
        number: int,
    ) -> None:
        self.orphan_grace_s: float = orphan_grace_s
        self.number: int = number
        self.address: Address = address
        self.gateway: Address | None = None if gateway == address else gateway
        self.keys: Keys = keys
        self.config: Config = config
        self.is_held: bool | None = None
        self.is_over: threading.Event = threading.Event()


class StandbyWorkers:
    """All standby workers of a job."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._workers: list[StandbyWorker] = []
        self._changed = threading.Condition()
        self._count = 0
        self._preloaded: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._workers)

    def hold(
        self,
        address: Address,
        gateway: Address | None,
        keys: Keys,
        config: Config,
        orphan_grace_s: float = 0.0,
        number: int | None = None,
        *,
        busy_s: float = 0.0,
    ) -> None:
        """Reserve a worker from now on.

        Args:
            address: The address of the worker.
            gateway: The address of the worker that forwards connections to it; None for none.
            keys: The keys with which both sides authenticate.
            config: The configuration of the job.
            orphan_grace_s: The orphan grace period in seconds, which extends the reservation.
            number: The number that a previous program used for it.
            busy_s: How long it may still end another session, in seconds.
        """
        with self._changed:
            known = self._count if number is None else number
            worker = StandbyWorker(address, gateway, keys, config, orphan_grace_s, known)
            self._count = max(self._count, known + 1)
            self._workers.append(worker)
        if orphan_grace_s and number is None and self._runtime.journal is not None:
            self._runtime.journal.note_standby(worker)
        threading.Thread(
            target=self._keep, args=(worker, busy_s), name=f"mesh-standby-{address}", daemon=True
        ).start()

    @property
    def preloaded(self) -> tuple[str, ...]:
        """The modules that standby workers import while they are reserved."""
        return self._preloaded

    def preload(self, modules: Sequence[str]) -> None:
        """Let standby workers import modules, from the next renewal of their reservations on."""
        self._preloaded = tuple(dict.fromkeys((*self._preloaded, *modules)))

    def addresses(self) -> set[Address]:
        """Return the addresses of all standby workers."""
        with self._changed:
            return {worker.address for worker in self._workers}

    def take(self) -> StandbyWorker | None:
        """Remove a reserved worker from the standby workers and return it; None if none is left."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    any(worker.is_held for worker in self._workers)
                    or all(worker.is_held is not None for worker in self._workers)
                ),
                max((worker.config.attach_timeout_s for worker in self._workers), default=0.0),
            )
            worker = next((worker for worker in self._workers if worker.is_held), None)
            if worker is None:
                return None
            self._workers.remove(worker)
        worker.is_over.set()
        if self._runtime.journal is not None:
            self._runtime.journal.drop_standby(worker)
        return worker

    def release(self) -> None:
        """Release all of them."""
        with self._changed:
            workers, self._workers = self._workers, []
            self._changed.notify_all()
        threads = []
        for worker in workers:
            worker.is_over.set()
            if worker.is_held:
                threads.append(threading.Thread(target=self._release, args=(worker,), daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(_RELEASE_LIMIT_S)

    def _keep(self, worker: StandbyWorker, busy_s: float) -> None:
        pause_s = worker.config.host_lease_s / _PER_LEASE
        busy_until = time.monotonic() + busy_s
        while not worker.is_over.is_set() and not self._runtime.is_over:
            is_held = self._ask(worker, HOLD, pause_s)
            if not is_held and time.monotonic() < busy_until:
                worker.is_over.wait(_RETRY_S)
                continue
            with self._changed:
                worker.is_held = is_held
                self._changed.notify_all()
            worker.is_over.wait(pause_s)

    def _release(self, worker: StandbyWorker) -> None:
        self._ask(worker, RELEASE, _RELEASE_LIMIT_S)

    def _ask(self, worker: StandbyWorker, verb: str, limit_s: float) -> bool:
        identity = self._runtime.identity
        request = AttachRequest.of_program(
            identity.job,
            identity.token,
            0,
            worker.config,
            verb=verb,
            orphan_grace_s=worker.orphan_grace_s,
            preload=self._preloaded if verb == HOLD else (),
        )
        try:
            route = Route.to_worker(worker.address, worker.gateway)
            is_held, _, _ = request_attach(
                route.addresses, worker.keys, request.encode(), limit_s, route.gateway
            )
        except OSError:
            # The worker is not reachable at the moment.
            return False
        return is_held


def join_limit_s(config: Config, *, is_spare: bool) -> float:
    """Return the time limit for a worker to join, in seconds.

    A standby worker has confirmed its reservation a moment ago, so it joins at once unless it has
    just died.
    """
    return max(config.host_lease_s, _JOIN_S) if is_spare else config.attach_timeout_s
