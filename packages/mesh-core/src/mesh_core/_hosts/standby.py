"""Standby workers, which a job reserves to replace hosts that die.

A standby worker (a *spare* in names) serves nothing. The program renews the reservation of its
worker periodically. Until the reservation expires, the worker serves no other program; after the
program is gone, it becomes available. If the job has an orphan grace period, the reservation
includes it.
"""

from __future__ import annotations

import threading

from mesh_core._core import request_attach
from mesh_core._hosts.attach_request import AttachOrder
from mesh_core._hosts.route import Route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._configuration.config import Config
    from mesh_core._core import Keys
    from mesh_core._hosts.address import Address
    from mesh_core._runtime.runtime import Runtime

__all__ = ["Spare", "StandbyWorkers"]

# The number of renewals of a reservation per lease.
_PER_LEASE = 3
_RELEASE_LIMIT_S = 1.0


class Spare:
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
        self._spares: list[Spare] = []
        self._changed = threading.Condition()
        self._count = 0

    def __len__(self) -> int:
        return len(self._spares)

    def hold(
        self,
        address: Address,
        gateway: Address | None,
        keys: Keys,
        config: Config,
        orphan_grace_s: float = 0.0,
        number: int | None = None,
    ) -> None:
        """Reserve a worker from now on; `number` is the one that a previous program used for it."""
        with self._changed:
            known = self._count if number is None else number
            spare = Spare(address, gateway, keys, config, orphan_grace_s, known)
            self._count = max(self._count, known + 1)
            self._spares.append(spare)
        if orphan_grace_s and number is None and self._runtime.journal is not None:
            self._runtime.journal.note_spare(spare)
        threading.Thread(
            target=self._keep, args=(spare,), name=f"mesh-spare-{address}", daemon=True
        ).start()

    def take(self) -> Spare | None:
        """Remove a reserved worker from the standby workers and return it; None if none is left."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    any(spare.is_held for spare in self._spares)
                    or all(spare.is_held is not None for spare in self._spares)
                ),
                max((spare.config.attach_timeout_s for spare in self._spares), default=0.0),
            )
            spare = next((spare for spare in self._spares if spare.is_held), None)
            if spare is None:
                return None
            self._spares.remove(spare)
        spare.is_over.set()
        if self._runtime.journal is not None:
            self._runtime.journal.drop_spare(spare)
        return spare

    def release(self) -> None:
        """Release all of them."""
        with self._changed:
            spares, self._spares = self._spares, []
            self._changed.notify_all()
        threads = []
        for spare in spares:
            spare.is_over.set()
            if spare.is_held:
                threads.append(threading.Thread(target=self._let_go, args=(spare,), daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(_RELEASE_LIMIT_S)

    def _keep(self, spare: Spare) -> None:
        pause_s = spare.config.host_lease_s / _PER_LEASE
        while not spare.is_over.is_set() and not self._runtime.is_over:
            is_held = self._ask(spare, "hold", pause_s)
            with self._changed:
                spare.is_held = is_held
                self._changed.notify_all()
            spare.is_over.wait(pause_s)

    def _let_go(self, spare: Spare) -> None:
        self._ask(spare, "release", _RELEASE_LIMIT_S)

    def _ask(self, spare: Spare, verb: str, limit_s: float) -> bool:
        identity = self._runtime.identity
        order = AttachOrder.of_program(
            identity.job,
            identity.token,
            0,
            spare.config,
            verb=verb,
            orphan_grace_s=spare.orphan_grace_s,
        )
        try:
            route = Route.to_worker(spare.address, spare.gateway)
            is_held, _, _ = request_attach(
                route.addresses, spare.keys, order.encode(), limit_s, route.gateway
            )
        except OSError:
            # The worker is not reachable at the moment.
            return False
        return is_held
