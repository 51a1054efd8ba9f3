"""Workers that are kept aside, to take the places of hosts that die.

A spare serves nothing. Its worker is only told, again and again, that the job wants it; so it
serves nobody else meanwhile, and is free again when the program is gone. Where the job is held for
a successor, so is the spare.
"""

from __future__ import annotations

import threading

from mesh_core._core import ask_worker
from mesh_core._hosts.route import Route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._configuration.config import Config
    from mesh_core._core import Keys
    from mesh_core._hosts.address import Address
    from mesh_core._program.runtime import Runtime

__all__ = ["Spare", "Spares"]

# How often in a lease a worker is told that it is wanted.
_PER_LEASE = 3
_RELEASE_LIMIT_S = 1.0


class Spare:
    """One worker.

    Attributes:
        address: Where it listens.
        gateway: Where the worker listens through which it is reached; None for none.
        keys: What both sides prove themselves with.
        config: What was configured when it was attached.
        is_held: It has said that it keeps itself free; None before it was asked.
        is_over: It is no spare any more.
        hold_s: How long it waits for a successor of the program.
        number: Of the spares of the job.
    """

    __slots__ = (
        "address",
        "config",
        "gateway",
        "hold_s",
        "is_held",
        "is_over",
        "keys",
        "number",
    )

    def __init__(
        self,
        address: Address,
        gateway: Address | None,
        keys: Keys,
        config: Config,
        hold_s: float,
        number: int,
    ) -> None:
        self.hold_s: float = hold_s
        self.number: int = number
        self.address: Address = address
        self.gateway: Address | None = None if gateway == address else gateway
        self.keys: Keys = keys
        self.config: Config = config
        self.is_held: bool | None = None
        self.is_over: threading.Event = threading.Event()


class Spares:
    """All spares of a job."""

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
        hold_s: float = 0.0,
        number: int | None = None,
    ) -> None:
        """Keeps a worker aside from now on; the program before did it under a number."""
        with self._changed:
            known = self._count if number is None else number
            spare = Spare(address, gateway, keys, config, hold_s, known)
            self._count = max(self._count, known + 1)
            self._spares.append(spare)
        if hold_s and number is None and self._runtime.journal is not None:
            self._runtime.journal.note_spare(spare)
        threading.Thread(
            target=self._keep, args=(spare,), name=f"mesh-spare-{address}", daemon=True
        ).start()

    def take(self) -> Spare | None:
        """Gives a worker that is no spare any more; None when none is left that can be had."""
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
        """Lets all of them go."""
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
        # Not at the top: most programs never attach, and importing Mesh is to be light.
        from mesh_core._hosts.attach_request import AttachOrder

        identity = self._runtime.identity
        order = AttachOrder.of_program(
            identity.job, identity.token, 0, spare.config, verb=verb, hold_s=spare.hold_s
        )
        try:
            route = Route.to_worker(spare.address, spare.gateway)
            is_held, _, _ = ask_worker(
                route.addresses, spare.keys, order.encode(), limit_s, route.gateway
            )
        except OSError:
            # It is not there, for now.
            return False
        return is_held
