"""What a client asks of a worker when it wants it to serve its job. Never a pickle: JSON."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["VERSION", "AttachOrder"]

VERSION = 1


class AttachOrder:
    """A job, and which of its hosts the worker is to be.

    Attributes:
        job: The job, 16 bytes.
        token: Proof of belonging to it, 32 bytes.
        host: The number of the host in the job.
        owner: Who asks, for people.
        lease_s: After how long without a sign of life of the client the worker leaves the job.
        generation: How many programs have run the job before this one, at least.
        hold_s: How long the worker holds the job for a successor of the client; 0 not at all.
        config: What is configured in the client.
        path: Where the client finds modules; what of it exists on the worker is used there too.
    """

    __slots__ = (
        "config",
        "generation",
        "hold_s",
        "host",
        "job",
        "lease_s",
        "owner",
        "path",
        "token",
    )

    def __init__(
        self,
        job: bytes,
        token: bytes,
        host: int,
        owner: str,
        lease_s: float,
        config: Mapping[str, Any],
        path: Sequence[str],
        generation: int = 0,
        hold_s: float = 0.0,
    ) -> None:
        self.job: bytes = job
        self.token: bytes = token
        self.host: int = host
        self.owner: str = owner
        self.lease_s: float = lease_s
        self.config: Mapping[str, Any] = config
        self.path: Sequence[str] = path
        self.generation: int = generation
        self.hold_s: float = hold_s

    def encode(self) -> bytes:
        """Gives the bytes that `decode` reads."""
        facts = {
            "version": VERSION,
            "job": self.job.hex(),
            "token": self.token.hex(),
            "host": self.host,
            "owner": self.owner,
            "lease_s": self.lease_s,
            "path": list(self.path),
            "generation": self.generation,
            "hold_s": self.hold_s,
            "config": {k: v for k, v in self.config.items() if _is_plain(v)},
        }
        return json.dumps(facts).encode()

    @staticmethod
    def decode(body: bytes) -> AttachOrder:
        """Reads what `encode` gave.

        Raises:
            ValueError: It is something else.
        """
        try:
            facts = json.loads(body)
            if facts["version"] != VERSION:
                raise ValueError(
                    f"the client speaks version {facts['version']} of attaching, this worker "
                    f"{VERSION}: install the same version of mesh-core on both"
                )
            order = AttachOrder(
                bytes.fromhex(facts["job"]),
                bytes.fromhex(facts["token"]),
                int(facts["host"]),
                str(facts["owner"]),
                float(facts["lease_s"]),
                dict(facts["config"]),
                [str(folder) for folder in facts["path"]],
                int(facts["generation"]),
                float(facts["hold_s"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no request of a Mesh client ({error!r})") from error
        is_whole = len(order.job) == 16 and len(order.token) == 32
        has_times = order.lease_s > 0 and order.hold_s >= 0
        if not is_whole or not 0 < order.host < 2**32 or not has_times:
            raise ValueError("this is no request of a Mesh client (a field is out of range)")
        return order


def _is_plain(value: object) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float, str))
        or (isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value))
    )
