"""What a client asks of a worker when it wants it to serve its job. Never a pickle: JSON."""

from __future__ import annotations

import getpass
import json
import os
import sys

from mesh_core._wire import EPOCH_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mesh_core._config import Config

__all__ = ["HOLD", "RELEASE", "SERVE", "VERSION", "AttachOrder"]

VERSION = 1
# Serve the job; keep free for it; be free for others again.
SERVE, HOLD, RELEASE = _VERBS = ("serve", "hold", "release")
# What people are told of who asks is not longer.
_OWNER_LEN_MAX = 300
# Numbers that every clock can add to.
_NUMBER_MAX = 1e15


class AttachOrder:
    """A job, and which of its hosts the worker is to be.

    Attributes:
        job: The job, 16 bytes.
        token: Proof of belonging to it, 32 bytes.
        host: The number of the host in the job.
        owner: Who asks, for people.
        lease_s: After how long without a sign of life of the client the worker leaves the job.
        config: What is configured in the client.
        epoch: How many machines were in the place of the host before.
        verb: What is wanted: to `serve` the job, to `hold` the worker free for it, to `release` it.
        path: Where the client finds modules; what of it exists on the worker is used there too.
    """

    __slots__ = (
        "config",
        "epoch",
        "host",
        "job",
        "lease_s",
        "owner",
        "path",
        "token",
        "verb",
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
        epoch: int = 0,
        verb: str = SERVE,
    ) -> None:
        self.job: bytes = job
        self.token: bytes = token
        self.host: int = host
        self.owner: str = owner
        self.lease_s: float = lease_s
        self.config: Mapping[str, Any] = config
        self.path: Sequence[str] = path
        self.epoch: int = epoch
        self.verb: str = verb

    @staticmethod
    def of_program(
        job: bytes, token: bytes, host: int, config: Config, *, epoch: int = 0, verb: str = SERVE
    ) -> AttachOrder:
        """Makes the request of this program."""
        return AttachOrder(
            job,
            token,
            host,
            f"{_user()}@{os.uname().nodename} (process {os.getpid()})",
            config.host_lease_s,
            config.as_mapping(),
            [os.path.abspath(folder) for folder in sys.path],
            epoch,
            verb,
        )

    def encode(self) -> bytes:
        """Gives the bytes that `decode` reads."""
        facts = {
            "version": VERSION,
            "job": self.job.hex(),
            "token": self.token.hex(),
            "host": self.host,
            "epoch": self.epoch,
            "verb": self.verb,
            "owner": self.owner,
            "lease_s": self.lease_s,
            "path": list(self.path),
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
            facts = _facts(body)
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
                int(facts.get("epoch", 0)),
                str(facts.get("verb", SERVE)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no request of a Mesh client ({error!r})") from error
        is_whole = len(order.job) == 16 and len(order.token) == 32
        is_known = order.verb in _VERBS and 0 <= order.epoch <= EPOCH_MAX
        first_host = 1 if order.verb == SERVE else 0
        is_in_range = first_host <= order.host < 2**32 and order.lease_s > 0
        if not (is_whole and is_known and is_in_range):
            raise ValueError("this is no request of a Mesh client (a field is out of range)")
        return order


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _is_plain(value: object) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float, str))
        or (isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value))
    )


def _facts(body: bytes) -> dict[str, Any]:
    """Reads JSON whose numbers can be used in every way and whose texts can be written."""
    try:
        facts = json.loads(body, parse_float=_finite, parse_constant=_finite, parse_int=_finite_int)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no request of a Mesh client ({error})") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("config"), dict):
        raise ValueError("this is no request of a Mesh client (it is no table of settings)")
    if not all(map(_is_plain, facts["config"].values())):
        raise ValueError("this is no request of a Mesh client (a setting has a strange value)")
    if isinstance(facts.get("lease_s"), str):
        raise ValueError("this is no request of a Mesh client (its lease is no number)")
    name = facts.get("owner")
    if not isinstance(name, str):
        raise ValueError("this is no request of a Mesh client (it does not say who asks)")
    facts["owner"] = "".join(c if c.isprintable() else "?" for c in name[:_OWNER_LEN_MAX])
    return facts


def _finite(text: str) -> float:
    number = float(text)
    if not -_NUMBER_MAX <= number <= _NUMBER_MAX:
        raise ValueError(f"{text[:20]} is no number to use")
    return number


def _finite_int(text: str) -> int:
    _finite(text)
    return int(text)
