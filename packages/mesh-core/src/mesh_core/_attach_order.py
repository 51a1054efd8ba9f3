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

__all__ = [
    "HOLD",
    "RELEASE",
    "SERVE",
    "VERSION",
    "AttachOrder",
    "printable",
    "this_program",
    "usable_facts",
]

VERSION = 1
# What people are told of who asks is not longer.
_OWNER_LEN_MAX = 300
# Numbers that every clock can add to.
_NUMBER_MAX = 1e15
# Serve the job; keep free for it; be free for others again.
SERVE, HOLD, RELEASE = _VERBS = ("serve", "hold", "release")


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
        epoch: How many machines were in the place of the host before.
        verb: What is wanted: to `serve` the job, to `hold` the worker free for it, to `release` it.
        path: Where the client finds modules; what of it exists on the worker is used there too.
    """

    __slots__ = (
        "config",
        "epoch",
        "generation",
        "hold_s",
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
        self.epoch: int = epoch
        self.verb: str = verb

    @staticmethod
    def of_program(
        job: bytes,
        token: bytes,
        host: int,
        config: Config,
        *,
        epoch: int = 0,
        verb: str = SERVE,
        generation: int = 0,
        hold_s: float = 0.0,
    ) -> AttachOrder:
        """Makes the request of this program."""
        return AttachOrder(
            job,
            token,
            host,
            this_program(),
            config.host_lease_s,
            config.as_mapping(),
            [os.path.abspath(folder) for folder in sys.path],
            epoch,
            verb,
            generation,
            hold_s,
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
                int(facts["epoch"]),
                str(facts["verb"]),
                int(facts["generation"]),
                float(facts["hold_s"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no request of a Mesh client ({error!r})") from error
        is_whole = len(order.job) == 16 and len(order.token) == 32
        is_known = order.verb in _VERBS and 0 <= order.epoch <= EPOCH_MAX
        first_host = 1 if order.verb == SERVE else 0
        has_times = order.lease_s > 0 and order.hold_s >= 0
        is_heir = 0 <= order.generation <= EPOCH_MAX
        is_in_range = first_host <= order.host < 2**32 and has_times and is_heir
        if not (is_whole and is_known and is_in_range):
            raise ValueError("this is no request of a Mesh client (a field is out of range)")
        return order


def this_program() -> str:
    """Names this process for the people at other machines."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename} (process {os.getpid()})"


def _is_plain(value: object) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float, str))
        or (isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value))
    )


def usable_facts(body: bytes) -> dict[str, Any]:
    """Reads a JSON object whose numbers can be used in every way.

    Raises:
        ValueError: It is something else.
    """
    try:
        facts = json.loads(body, parse_float=_finite, parse_constant=_finite, parse_int=_finite_int)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(facts, dict):
        raise ValueError("it is no table")
    return facts


def printable(name: object) -> str:
    """Makes a text from afar one that people can be shown.

    Raises:
        ValueError: It is no text.
    """
    if not isinstance(name, str):
        raise ValueError("it does not say who asks")
    return "".join(c if c.isprintable() else "?" for c in name[:_OWNER_LEN_MAX])


def _facts(body: bytes) -> dict[str, Any]:
    try:
        facts = usable_facts(body)
        facts["owner"] = printable(facts.get("owner"))
    except ValueError as error:
        raise ValueError(f"this is no request of a Mesh client ({error})") from error
    if not isinstance(facts.get("config"), dict):
        raise ValueError("this is no request of a Mesh client (it is no table of settings)")
    if not all(map(_is_plain, facts["config"].values())):
        raise ValueError("this is no request of a Mesh client (a setting has a strange value)")
    if any(isinstance(facts.get(name), str) for name in ("lease_s", "hold_s")):
        raise ValueError("this is no request of a Mesh client (a time is no number)")
    return facts


def _finite(text: str) -> float:
    number = float(text)
    if not -_NUMBER_MAX <= number <= _NUMBER_MAX:
        raise ValueError(f"{text[:20]} is no number to use")
    return number


def _finite_int(text: str) -> int:
    _finite(text)
    return int(text)
