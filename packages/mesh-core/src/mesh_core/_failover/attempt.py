"""Requests of a successor to the workers that keep a job."""

from __future__ import annotations

import secrets
import threading
import time

from mesh_core._core import request_attach
from mesh_core._failover.errors import TakeOverError
from mesh_core._hosts.attach_request import this_program
from mesh_core._hosts.route import Route
from mesh_core._hosts.take_over_request import Refusal, TakeOverReply, TakeOverRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_core._core import Keys
    from mesh_core._hosts.address import Address

__all__ = ["TakeOverAttempt", "TakenWorker"]

# The pause between two attempts: the lease of the previous program may not have expired.
_PAUSE_S = 0.2
_ASK_LIMIT_S = 10.0


class TakenWorker:
    """A worker that serves the successor.

    Attributes:
        address: The address that the program uses for it.
        gateway: The address of the worker that forwards connections to it; None for none.
        route: The route to the worker.
        grant: The grant of the worker.
    """

    __slots__ = ("address", "gateway", "grant", "route")

    def __init__(
        self, address: Address, gateway: Address | None, route: Route, grant: TakeOverReply
    ) -> None:
        self.address: Address = address
        self.gateway: Address | None = gateway
        self.route: Route = route
        self.grant: TakeOverReply = grant


class TakeOverAttempt:
    """One attempt to take over a job.

    If two programs try at the same time, both query the same worker first, and that worker decides.
    Its grant is valid for the other workers.

    Args:
        keys: The keys of a controller of the job.
        lease_s: Seconds without a sign of life after which the workers start another orphan grace
            period.
        gateway: The address of a worker that forwards connections to all others; None to reach each
            worker as the previous program did.
    """

    def __init__(self, keys: Keys, lease_s: float, gateway: Address | None = None) -> None:
        self._keys = keys
        self._gateway = gateway
        self._name = secrets.token_hex(16)
        self._generation = 0
        self._job: bytes | None = None
        self._lease_s = lease_s

    def take_first(self, addresses: Sequence[Address], limit_s: float) -> TakenWorker:
        """Take over the first worker that keeps a job, waiting while its previous program is alive.

        Raises:
            TakeOverError: No worker keeps a job, or another program has it.
        """
        until = time.monotonic() + limit_s
        while True:
            whys = []
            for address in addresses:
                answer = self._ask(address)
                if isinstance(answer, TakenWorker):
                    self._job, self._generation = answer.grant.job, answer.grant.generation
                    return answer
                whys.append(answer.why)
                if not answer.is_final:
                    # Requests to the other workers now could split them between several successors.
                    break
            if time.monotonic() >= until:
                raise TakeOverError(f"no worker could be taken over: {'; '.join(whys)}")
            time.sleep(_PAUSE_S)

    def take_others(
        self, gateways: Mapping[Address, Address | None], limit_s: float, silence_s: float
    ) -> tuple[list[TakenWorker], list[str]]:
        """Take over the other workers of the job concurrently.

        Args:
            gateways: The addresses of the workers, each with the gateway that the previous program
                used.
            limit_s: Seconds to retry a worker that refuses temporarily.
            silence_s: Seconds to retry a worker that does not reply.

        Returns:
            The workers that were taken over, and the reasons why the others were not.

        Raises:
            TakeOverError: Another live successor has one of them.
        """
        taken: list[TakenWorker] = []
        whys: list[str] = []
        rivals: list[str] = []

        def take(address: Address, gateway: Address | None) -> None:
            started = time.monotonic()
            while True:
                answer = self._ask(address, gateway)
                if isinstance(answer, TakenWorker):
                    taken.append(answer)
                    return
                is_silent = isinstance(answer, _Silence)
                asked_s = time.monotonic() - started
                is_over = answer.is_final and not is_silent
                if answer.is_rival:
                    rivals.append(answer.why)
                if is_over or asked_s >= (silence_s if is_silent else limit_s):
                    whys.append(answer.why)
                    return
                time.sleep(_PAUSE_S)

        threads = [
            threading.Thread(target=take, args=worker, name="mesh-claim", daemon=True)
            for worker in gateways.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if rivals:
            # Two successors that cannot reach each other's first workers would each take the
            # workers that they reach. A job must have one program or none.
            raise TakeOverError(f"another successor was first: {'; '.join(rivals)}")
        return taken, whys

    def gateway_to(self, address: Address, noted: Address | None = None) -> Address | None:
        """Return the gateway to a worker that the previous program reached through `noted`."""
        gateway = noted if self._gateway is None else self._gateway
        return None if gateway == address else gateway

    def _ask(self, address: Address, noted: Address | None = None) -> TakenWorker | Refusal:
        gateway = self.gateway_to(address, noted)
        request = TakeOverRequest(
            self._name, this_program(), self._job, self._generation, self._lease_s
        )
        try:
            route = Route.to_worker(address, gateway)
            is_taken, text, _ = request_attach(
                route.addresses, self._keys, request.encode(), _ASK_LIMIT_S, route.gateway
            )
        except OSError as error:
            return _Silence(f"{address} cannot be reached: {error}")
        try:
            if is_taken:
                return TakenWorker(address, gateway, route, TakeOverReply.decode(text))
        except ValueError as error:
            return Refusal(f"{address} sent a malformed reply: {error}", is_final=True)
        refusal = Refusal.decode(text)
        why = f"the worker at {address} refused: {refusal.why}"
        return Refusal(why, is_final=refusal.is_final, is_rival=refusal.is_rival)


class _Silence(Refusal):
    """The worker did not reply."""

    __slots__ = ()

    def __init__(self, why: str) -> None:
        super().__init__(why, is_final=True)
