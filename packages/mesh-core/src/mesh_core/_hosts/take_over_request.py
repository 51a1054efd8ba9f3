"""The request of a successor to a worker that keeps a job, and the reply; JSON, never pickles."""

from __future__ import annotations

import json

from mesh_core._hosts.request_fields import RequestFields
from mesh_core._runtime.epoch import EPOCH_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Refusal", "TakeOverReply", "TakeOverRequest"]

_KEY = "take_over"
_VERSION = 1
_WHY_LEN_MAX = 2000


class TakeOverRequest:
    """A request to run the job that a worker keeps.

    Attributes:
        claim: The id of this attempt; a worker replies to a repeated request in the same way.
        owner: The requester, as readable text.
        job: The job, 16 bytes; None for the first worker, which replies with the job that it keeps.
        generation: The generation that the first worker has granted; 0 in the first request.
        lease_s: Seconds without a sign of life of the successor after which the worker starts
            another orphan grace period.
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
        """Return the bytes that `decode` parses."""
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
    def decode(body: bytes) -> TakeOverRequest | None:
        """Parse the result of `encode`; return None for any other request or content."""
        try:
            fields = RequestFields(body)
            fields.whole(_KEY, _VERSION, _VERSION)
            return TakeOverRequest(
                fields.name("claim"),
                fields.name("owner"),
                fields.octets_or_none("job", 16),
                fields.whole("generation", 0, EPOCH_MAX),
                fields.seconds("lease_s"),
            )
        except ValueError:
            return None


class TakeOverReply:
    """The data that a successor needs to be the controller of one worker.

    Attributes:
        job: The job, 16 bytes.
        token: The secret of the job, 32 bytes.
        host: The number of the worker's host in the job.
        host_name: The host name of its machine.
        epoch: The number of machines that served as this host before.
        generation: The generation of the successor.
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
        """Return the text that `decode` parses."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**facts, "job": self.job.hex(), "token": self.token.hex()})

    @staticmethod
    def decode(text: bytes) -> TakeOverReply:
        """Parse the result of `encode`.

        Raises:
            ValueError: The text is not a valid grant.
        """
        try:
            fields = RequestFields(text)
            return TakeOverReply(
                fields.octets("job", 16),
                fields.octets("token", 32),
                fields.whole("host", 1, 2**32 - 1),
                fields.name("host_name"),
                fields.whole("epoch", 0, EPOCH_MAX),
                fields.whole("generation", 1, EPOCH_MAX),
            )
        except ValueError as error:
            raise ValueError(f"this is not a reply of a Mesh worker ({error})") from error


class Refusal:
    """The reason why a worker does not accept a successor.

    Attributes:
        why: The reason, as readable text.
        is_final: Whether a retry would be refused, too.
        is_rival: Whether another live successor has the worker.
    """

    __slots__ = ("is_final", "is_rival", "why")

    def __init__(self, why: str, *, is_final: bool, is_rival: bool = False) -> None:
        self.why: str = why
        self.is_final: bool = is_final
        self.is_rival: bool = is_rival

    def encode(self) -> str:
        """Return the text that `decode` parses."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def decode(text: bytes) -> Refusal:
        """Parse the result of `encode`; plain text is a final refusal."""
        try:
            fields = RequestFields(text)
            return Refusal(
                fields.name("why", _WHY_LEN_MAX),
                is_final=fields.flag("is_final"),
                is_rival=fields.flag("is_rival"),
            )
        except ValueError:
            return Refusal(text.decode(errors="replace"), is_final=True)
