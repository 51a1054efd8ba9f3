"""What a successor asks of a worker that holds a job, and what it is told. Never a pickle: JSON."""

from __future__ import annotations

import json

from mesh_core._hosts.epoch import EPOCH_MAX
from mesh_core._workers.request_fields import OrderFields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Grant", "Refusal", "TakeOverOrder"]

_KEY = "take_over"
_VERSION = 1
_WHY_LEN_MAX = 2000


class TakeOverOrder:
    """A wish to run the job that a worker holds.

    Attributes:
        claim: Names this attempt: asked twice, a worker says the same twice.
        owner: Who asks, for people.
        job: The job, 16 bytes; None for the first worker that is asked, which says what it holds.
        generation: What the first worker has granted; 0 when this is the first.
        lease_s: After how long without a sign of life of the successor the worker holds again.
    """

    __slots__ = ("claim", "generation", "job", "lease_s", "owner")

    def __init__(
        self, claim: str, owner: str, job: bytes | None, generation: int, lease_s: float
    ) -> None:
        self.claim: str = claim
        self.owner: str = owner
        self.job: bytes | None = job
        self.generation: int = generation
        self.lease_s: float = lease_s

    def encode(self) -> bytes:
        """Gives the bytes that `decode` reads."""
        facts = {
            _KEY: _VERSION,
            "claim": self.claim,
            "owner": self.owner,
            "job": None if self.job is None else self.job.hex(),
            "generation": self.generation,
            "lease_s": self.lease_s,
        }
        return json.dumps(facts).encode()

    @staticmethod
    def decode(body: bytes) -> TakeOverOrder | None:
        """Reads what `encode` gave; None when it is another request, or none at all."""
        try:
            fields = OrderFields(body)
            fields.whole(_KEY, _VERSION, _VERSION)
            return TakeOverOrder(
                fields.name("claim"),
                fields.name("owner"),
                fields.octets_or_none("job", 16),
                fields.whole("generation", 0, EPOCH_MAX),
                fields.seconds("lease_s"),
            )
        except ValueError:
            return None


class Grant:
    """What a successor needs to be the controller for one worker.

    Attributes:
        job: The job, 16 bytes.
        token: Proof of belonging to it, 32 bytes.
        host: The number of the worker's host in the job.
        host_name: What its machine calls itself.
        epoch: How many machines were in the place of the host before.
        generation: The successor's.
    """

    __slots__ = ("epoch", "generation", "host", "host_name", "job", "token")

    def __init__(
        self, job: bytes, token: bytes, host: int, host_name: str, epoch: int, generation: int
    ) -> None:
        self.job: bytes = job
        self.token: bytes = token
        self.host: int = host
        self.host_name: str = host_name
        self.epoch: int = epoch
        self.generation: int = generation

    def encode(self) -> str:
        """Gives the text that `decode` reads."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**facts, "job": self.job.hex(), "token": self.token.hex()})

    @staticmethod
    def decode(text: bytes) -> Grant:
        """Reads what `encode` gave.

        Raises:
            ValueError: It is something else.
        """
        try:
            fields = OrderFields(text)
            return Grant(
                fields.octets("job", 16),
                fields.octets("token", 32),
                fields.whole("host", 1, 2**32 - 1),
                fields.name("host_name"),
                fields.whole("epoch", 0, EPOCH_MAX),
                fields.whole("generation", 1, EPOCH_MAX),
            )
        except ValueError as error:
            raise ValueError(f"this is no answer of a Mesh worker ({error})") from error


class Refusal:
    """Why a worker does not take a successor.

    Attributes:
        why: For people.
        is_final: Asking again will not help.
        is_rival: Another successor has the worker, and lives.
    """

    __slots__ = ("is_final", "is_rival", "why")

    def __init__(self, why: str, *, is_final: bool, is_rival: bool = False) -> None:
        self.why: str = why
        self.is_final: bool = is_final
        self.is_rival: bool = is_rival

    def encode(self) -> str:
        """Gives the text that `decode` reads."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def decode(text: bytes) -> Refusal:
        """Reads what `encode` gave; plain text is a refusal for good."""
        try:
            fields = OrderFields(text)
            return Refusal(
                fields.name("why", _WHY_LEN_MAX),
                is_final=fields.flag("is_final"),
                is_rival=fields.flag("is_rival"),
            )
        except ValueError:
            return Refusal(text.decode(errors="replace"), is_final=True)
