"""Table of the attached hosts of a program, with the current and previous machines of each.

A host is a position in the job in the same way as a rank is a position on a host: when its machine
dies, another one replaces it, as the next epoch of the same host. Only the program keeps this
table. All other processes are therefore notified of deaths and replacements in the same order.
"""

from __future__ import annotations

import threading
import time

from mesh_core._errors import HostDied
from mesh_core._hosts.address import Address
from mesh_core._hosts.joining import ask_until_taken
from mesh_core._hosts.place import Place
from mesh_core._hosts.route import ways
from mesh_core._hosts.standby import StandbyWorkers, join_limit_s
from mesh_core._runtime.epoch import EPOCH_MAX
from mesh_core._serialization.wire import proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_core._configuration.config import Config
    from mesh_core._core import Keys
    from mesh_core._hosts.route import Route
    from mesh_core._runtime.runtime import Runtime

__all__ = ["Places"]

# The number of leases for which a machine that was declared dead is notified. Without a
# notification, it leaves after one lease.
_FENCE_LEASES = 2


class Places:
    """All attached hosts of a job."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._places: dict[int, Place] = {}
        self._changed = threading.Condition()
        self.standby: StandbyWorkers = StandbyWorkers(runtime)
        # Held while a host moves, because all hosts must be notified of the move.
        self.changing: threading.RLock = threading.RLock()

    def add(
        self,
        addresses: Sequence[Address],
        gateway: Address | None,
        keys: Keys,
        config: Config,
        orphan_grace_s: float = 0.0,
        *,
        is_observer: bool = False,
    ) -> tuple[Place, ...]:
        """Add hosts, with numbers that no host of the job has had."""
        with self._changed:
            first = max(self._places, default=0) + 1
            places = [
                Place(host, address, gateway, keys, config, orphan_grace_s, is_observer=is_observer)
                for host, address in enumerate(addresses, first)
            ]
            self._places.update((place.host, place) for place in places)
        return tuple(places)

    def restore(self, place: Place) -> None:
        """Add a host of the previous program."""
        with self._changed:
            self._places[place.host] = place

    def of(self, host: int) -> Place:
        """Return the host with a number."""
        return self._places[host]

    def find(self, host: int) -> Place | None:
        """Return the host with a number; None if it was not attached by this program."""
        with self._changed:
            return self._places.get(host)

    def addresses_in_use(self) -> set[Address]:
        """Return the addresses of all standby workers, and of hosts that are alive or may join."""
        with self._changed:
            used = [
                place.address
                for place in self._places.values()
                if place.exit_report is None and not place.has_left
            ]
        return {*used, *self.standby.addresses()}

    def worker_id(self, host: int) -> str:
        """Return the id of a host's worker; empty if none has joined, or for the program's host."""
        with self._changed:
            place = self._places.get(host)
            return "" if place is None or place.route is None else place.worker_id

    def name_of(self, host: int) -> str:
        """Return the name of a host's machine, its address before it joins, or else its number."""
        with self._changed:
            place = self._places.get(host)
        return str(host) if place is None else place.host_name

    def forget(self) -> None:
        """Remove all hosts without notifying them."""
        with self._changed:
            self._places.clear()

    def joined(self, place: Place, route: Route) -> None:
        """Record that a machine has joined as a host, and exchange routes with the living hosts."""
        with self.changing:
            self._joined(place, route)

    def _joined(self, place: Place, route: Route) -> None:
        with self._changed:
            others = [other for other in self._living() if other is not place]
            dead = [(other.host, other.exit_report) for other in self._dead() if other is not place]
            epochs = [(other.host, other.epoch) for other in others if other.epoch]
            known = {other.host: other.route for other in others if other.route is not None}
            # Still set if the agent has not yet been notified that the previous machine is dead.
            former = None if place.has_left else place.route
            place.route = route
            place.joined_epoch = place.epoch
            place.exit_report = None
            self._changed.notify_all()
        if former is not None:
            self.start_fence(place, place.epoch, former)
        tell = self._runtime.tell_agent
        agent = proc_id(place.host, 0)
        for host, epoch in epochs:
            tell(agent, "host_back", host, epoch)
        for host, exit_report in dead:
            tell(agent, "host_gone", host, exit_report)
        tell(agent, "routes", ways(route, known))
        for host, there in known.items():
            if place.epoch:
                tell(proc_id(host, 0), "host_back", place.host, place.epoch)
            tell(proc_id(host, 0), "routes", ways(there, {place.host: route}))
        if place.unwanted is not None:
            self._runtime.dismiss(place.host, is_shutdown=place.unwanted)

    def unwant(self, hosts: Iterable[int], *, is_shutdown: bool) -> None:
        """Dismiss machines that have not joined yet as soon as they join."""
        with self._changed:
            for host in hosts:
                place = self._places.get(host)
                if place is not None and place.route is None and place.exit_report is None:
                    place.unwanted = is_shutdown

    def died(self, host: int, epoch: int, exit_report: bytes) -> None:
        """Record that a machine is dead, notify all other hosts, and fence the machine."""
        with self._changed:
            place = self._places.get(host)
            if place is None or place.exit_report is not None or epoch < place.joined_epoch:
                # This notification is late: another machine has already replaced the dead one.
                return
            others = [other.host for other in self._living() if other is not place]
            route, place.route = place.route, None
        if self._runtime.journal is not None:
            self._runtime.journal.left(host)
        for other in others:
            self._runtime.tell_agent(proc_id(other, 0), "host_gone", host, exit_report)
        if route is not None and not place.has_left:
            self.start_fence(place, epoch + 1, route)
        with self._changed:
            # Set last, so that a replacement is announced after the death.
            place.exit_report = exit_report
            self._changed.notify_all()

    def living(self) -> list[int]:
        """Return the hosts that have joined and are neither dead nor dismissed.

        Hosts behind a gateway come first.
        """
        with self._changed:
            places = sorted(self._living(), key=lambda place: place.gateway is None)
        return [place.host for place in places]

    def leaving(self, host: int) -> bool:
        """Record that a host is being dismissed; return whether it needs to be."""
        with self._changed:
            place = self._places.get(host)
            if place is None or place.has_left or place.route is None:
                return False
            place.has_left = True
            return True

    def withdrew(self, host: int, epoch: int | None = None) -> Place | None:
        """Record that a machine leaves voluntarily, without fencing; None if it had not joined.

        Args:
            host: The number of the host.
            epoch: The epoch of the machine. Default: the current one.
        """
        with self._changed:
            place = self._places.get(host)
            if place is None or place.has_left or place.route is None:
                return None
            if epoch is not None and epoch < place.joined_epoch:
                return None
            place.route = None
            return place

    def replace(self, host: int, worker: str | None, *, may_return: bool, is_urgent: bool) -> None:
        """Replace the machine of a dead host; return when the new one has joined.

        Args:
            host: The number of the host.
            worker: The address of the worker on the new machine. Default: a standby worker.
            may_return: Whether to use the previous worker if no standby worker is left.
            is_urgent: Whether to return without an error if the host is alive again.

        Raises:
            HostDied: No machine is available.
            RuntimeError: The host is alive, was shut down, or is the host of the program.
            ValueError: The address is malformed.
        """
        place = self._places.get(host)
        if place is None:
            raise RuntimeError("the host of the program cannot be replaced: the program runs on it")
        given = None if worker is None else Address.parse_reachable(worker)
        if given is not None and not given.is_loopback and place.keys.is_local:
            raise ValueError(f"{given} is not on this machine, and the hosts have no credentials")
        with place.replacing:
            if is_urgent and self._is_living(place):
                return
            self._await_death(place)
            reasons = []
            while machine := self.next_machine(place, given, may_return=may_return):
                address, gateway, is_spare = machine
                limit_s = join_limit_s(place.config, is_spare=is_spare)
                why = self._put(place, address, gateway, limit_s)
                if why is None:
                    return
                reasons.append(why)
                if not is_spare:
                    break
        why = "; ".join(reasons) or "no standby worker is left: give the address of a worker"
        raise HostDied(host=str(place.address), reason=f"it could not be replaced ({why})")

    def drain(self, host: int, worker: str | None, timeout_s: float) -> None:
        """Move a living host to another machine; see `mesh_core._hosts.drain`."""
        # Few programs move hosts.
        from mesh_core._hosts.drain import drain_host  # noqa: PLC0415

        drain_host(self._runtime, host, worker, timeout_s)

    def _await_death(self, place: Place) -> None:
        """Wait until the death of a host is fully handled."""
        if place.has_left:
            raise RuntimeError(f"host {place.address} was shut down: attach it again")
        if self._is_living(place):
            raise RuntimeError(f"host {place.address} is alive: only a dead host can be replaced")
        with self._changed:
            self._changed.wait_for(
                lambda: place.exit_report is not None or self._runtime.is_over,
                place.config.heartbeat_s,
            )

    def require_living(self, place: Place) -> None:
        """Check that a host serves the job.

        Raises:
            HostDied: It is dead, or has not joined yet.
            RuntimeError: It was shut down, or was replaced too often.
        """
        if place.has_left:
            raise RuntimeError(f"host {place.address} was shut down: attach it again")
        if place.tried_count == EPOCH_MAX:
            raise RuntimeError(f"it was replaced {EPOCH_MAX} times, the maximum")
        if place.route is None or not self._is_living(place):
            raise HostDied(host=str(place.address), reason="it is dead, or has not joined yet")

    def _is_living(self, place: Place) -> bool:
        return place.exit_report is None and not self._runtime.engine.is_host_dead(place.host)

    def next_machine(
        self, place: Place, given: Address | None, *, may_return: bool
    ) -> tuple[Address, Address | None, bool] | None:
        """Return the next worker to try, its gateway, and whether it is a standby worker."""
        if given is not None:
            return given, None if given == place.gateway else place.gateway, False
        worker = self.standby.take()
        if worker is not None:
            return worker.address, worker.gateway, True
        return (place.address, place.gateway, False) if may_return else None

    def _put(
        self, place: Place, address: Address, gateway: Address | None, limit_s: float
    ) -> str | None:
        """Let a worker serve as a host; return the reason if it does not."""
        if place.tried_count == EPOCH_MAX:
            return f"it was replaced {EPOCH_MAX} times, the maximum"
        before = place.address, place.gateway
        place.address, place.gateway = address, gateway
        place.worker_id = ""
        # Failed attempts count too: the worker may have received the request, and only its reply
        # was lost.
        place.tried_count += 1
        place.epoch = place.tried_count
        why = ask_until_taken(self._runtime, place, limit_s)
        if why is not None:
            place.address, place.gateway = before
        return why

    def start_fence(self, place: Place, epoch: int, route: Route) -> None:
        """Notify a machine that no machine of a host before an epoch belongs to the job."""
        threading.Thread(
            target=self._fence,
            args=(place, epoch, route),
            name=f"mesh-fence-{place.host}",
            daemon=True,
        ).start()

    def _fence(self, place: Place, epoch: int, route: Route) -> None:
        """Notify a machine that was declared dead, as soon as it can be reached again."""
        pause_s = place.config.heartbeat_s
        until = time.monotonic() + max(_FENCE_LEASES * place.config.host_lease_s, pause_s)
        while not self._runtime.is_over and time.monotonic() < until:
            try:
                self._runtime.engine.fence(
                    place.host, epoch, route.addresses, pause_s, route.gateway, place.route_keys
                )
            except OSError:
                time.sleep(pause_s)
            else:
                return

    def _living(self) -> list[Place]:
        return [p for p in self._places.values() if p.route is not None and not p.has_left]

    def _dead(self) -> list[Place]:
        return [place for place in self._places.values() if place.exit_report is not None]
