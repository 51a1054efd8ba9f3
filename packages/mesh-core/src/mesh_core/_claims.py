"""Asking workers for a job that they hold."""

from __future__ import annotations

import secrets
import threading
import time

from mesh_core._attach_order import this_program
from mesh_core._core import ask_worker
from mesh_core._take_over import TakeOverError
from mesh_core._take_over_order import Grant, Refusal, TakeOverOrder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._address import Address
    from mesh_core._core import Keys

__all__ = ["Claim", "Taken"]

# Between two attempts: the lease of the program before may not be over.
_PAUSE_S = 0.2
_ASK_LIMIT_S = 10.0


class Taken:
    """A worker that serves the successor.

    Attributes:
        address: As the program knows it.
        routes: What it stands for.
        grant: What the worker has said.
    """

    __slots__ = ("address", "grant", "routes")

    def __init__(self, address: Address, routes: Sequence[str], grant: Grant) -> None:
        self.address: Address = address
        self.routes: Sequence[str] = routes
        self.grant: Grant = grant


class Claim:
    """One attempt to take a job over.

    The first worker decides who succeeds when two try at the same time, for both ask it first; what
    it grants is good for the others.

    Args:
        keys: Proof of being a controller of the job.
        lease_s: After how long without a sign of life the workers hold again.
    """

    def __init__(self, keys: Keys, lease_s: float) -> None:
        self._keys = keys
        self._name = secrets.token_hex(16)
        self._generation = 0
        self._job: bytes | None = None
        self._lease_s = lease_s

    def take_first(self, addresses: Sequence[Address], limit_s: float) -> Taken:
        """Takes the first worker that holds a job, and waits while the program before it lives.

        Raises:
            TakeOverError: There is none, or another program has the job.
        """
        until = time.monotonic() + limit_s
        while True:
            whys = []
            for address in addresses:
                answer = self._ask(address)
                if isinstance(answer, Taken):
                    self._job, self._generation = answer.grant.job, answer.grant.generation
                    return answer
                whys.append(answer.why)
                if not answer.is_final:
                    # The others would be of two minds if they were asked by several.
                    break
            if time.monotonic() >= until:
                raise TakeOverError(f"no worker could be taken over: {'; '.join(whys)}")
            time.sleep(_PAUSE_S)

    def take_others(
        self, addresses: Sequence[Address], limit_s: float, silence_s: float
    ) -> tuple[list[Taken], list[str]]:
        """Takes the other workers of the job, all at the same time.

        Args:
            addresses: Where they are.
            limit_s: How long those are asked that do not want to yet.
            silence_s: How long those are asked that say nothing.

        Returns:
            Those that could be had, and why the others could not.
        """
        taken: list[Taken] = []
        whys: list[str] = []

        def take(address: Address) -> None:
            started = time.monotonic()
            while True:
                answer = self._ask(address)
                if isinstance(answer, Taken):
                    taken.append(answer)
                    return
                is_silent = isinstance(answer, _Silence)
                asked_s = time.monotonic() - started
                is_over = answer.is_final and not is_silent
                if is_over or asked_s >= (silence_s if is_silent else limit_s):
                    whys.append(answer.why)
                    return
                time.sleep(_PAUSE_S)

        threads = [
            threading.Thread(target=take, args=(address,), name="mesh-claim", daemon=True)
            for address in addresses
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return taken, whys

    def _ask(self, address: Address) -> Taken | Refusal:
        order = TakeOverOrder(
            self._name, this_program(), self._job, self._generation, self._lease_s
        )
        try:
            routes = address.resolve()
            is_taken, text = ask_worker(routes, self._keys, order.encode(), _ASK_LIMIT_S)
        except OSError as error:
            return _Silence(f"{address} cannot be reached: {error.strerror or error}")
        try:
            if is_taken:
                return Taken(address, routes, Grant.decode(text))
        except ValueError as error:
            return Refusal(f"{address} says what cannot be understood: {error}", is_final=True)
        refusal = Refusal.decode(text)
        why = f"the worker at {address} refused: {refusal.why}"
        return Refusal(why, is_final=refusal.is_final)


class _Silence(Refusal):
    """Nobody has answered."""

    __slots__ = ()

    def __init__(self, why: str) -> None:
        super().__init__(why, is_final=True)
