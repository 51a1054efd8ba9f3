"""The request of a client that a worker serve its job, encoded as JSON."""

from __future__ import annotations

import base64
import getpass
import json
import os
import sys

from mesh_core._configuration.config import check
from mesh_core._errors import ConfigError
from mesh_core._hosts.request_fields import RequestFields, is_plain
from mesh_core._hosts.versions import versions_here
from mesh_core._runtime.epoch import EPOCH_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mesh_core._configuration.config import Config

__all__ = [
    "BESIDE",
    "HOLD",
    "RELEASE",
    "SERVE",
    "VERSION",
    "AttachReply",
    "AttachRequest",
    "this_program",
]

VERSION = 1
# A worker closes the connection if the first message is longer.
_LEN_MAX = 16 << 10
# Serve the job; reserve the worker for it; release the worker; open an additional session for it.
SERVE, HOLD, RELEASE, BESIDE = _VERBS = ("serve", "hold", "release", "beside")


class AttachRequest:
    """A job, and the host as which the worker should serve it.

    Attributes:
        job: The job, 16 bytes.
        token: The secret of the job, 32 bytes.
        host: The number of the host in the job.
        owner: The requester, as readable text.
        lease_s: The lease: seconds without a sign of life of the client after which the worker
            leaves the job. Once it has taken over a host that moves, the lease of `config` applies.
        generation: The minimum number of programs that have run the job before this one.
        orphan_grace_s: The orphan grace period: seconds for which the worker keeps the job for a
            successor of the client; 0 disables it.
        config: The configuration of the client.
        epoch: The number of machines that were tried as this host before.
        verb: The operation: `serve` the job, `hold` (reserve) the worker for it, `release` it, or
            return the port of an additional session (`observer`).
        path: The module search path of the client. The worker also uses the entries that exist on
            its machine.
        worker_id: The id of the only worker that may accept; empty for any worker.
        versions: The versions of Python and of packages of the client; empty to skip their
            comparison.
        preload: The modules that the processes of the job will need. With `hold`, the worker
            imports them while it is reserved; with `serve`, it replies after the imports.
        processes: For a host that is about to move here, the processes to start before the reply:
            their start requests by slot, as a compressed pickle; empty for none. Only a worker that
            serves the job reads it.
    """

    __slots__ = (
        "config",
        "epoch",
        "generation",
        "host",
        "job",
        "lease_s",
        "orphan_grace_s",
        "owner",
        "path",
        "preload",
        "processes",
        "token",
        "verb",
        "versions",
        "worker_id",
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
        orphan_grace_s: float = 0.0,
        worker_id: str = "",
        versions: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
        processes: bytes = b"",
    ) -> None:
        self.job: bytes = job
        self.token: bytes = token
        self.host: int = host
        self.owner: str = owner
        self.lease_s: float = lease_s
        self.config: Mapping[str, Any] = config
        self.path: Sequence[str] = path
        self.generation: int = generation
        self.orphan_grace_s: float = orphan_grace_s
        self.epoch: int = epoch
        self.verb: str = verb
        self.worker_id: str = worker_id
        self.versions: Mapping[str, str] = versions or {}
        self.preload: Sequence[str] = preload
        self.processes: bytes = processes

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
        orphan_grace_s: float = 0.0,
        worker_id: str = "",
        lease_s: float | None = None,
        preload: Sequence[str] = (),
        processes: bytes = b"",
    ) -> AttachRequest:
        """Create the request of this program."""
        return AttachRequest(
            job,
            token,
            host,
            this_program(),
            config.host_lease_s if lease_s is None else lease_s,
            config.as_mapping(),
            [os.path.abspath(folder) for folder in sys.path],
            epoch,
            verb,
            generation,
            orphan_grace_s,
            worker_id,
            versions_here() if config.check_versions else {},
            preload,
            processes,
        )

    def encode(self) -> bytes:
        """Return the bytes that `decode` parses, without the processes if they are too many."""
        body = self._encoded(self.processes)
        return body if len(body) <= _LEN_MAX else self._encoded(b"")

    def _encoded(self, processes: bytes) -> bytes:
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
            "orphan_grace_s": self.orphan_grace_s,
            "worker_id": self.worker_id,
            "versions": dict(self.versions),
            "preload": list(self.preload),
            "processes": base64.b64encode(processes).decode(),
            "config": {k: v for k, v in self.config.items() if is_plain(v)},
        }
        return json.dumps(facts).encode()

    @staticmethod
    def decode(body: bytes) -> AttachRequest:
        """Parse the result of `encode`.

        Raises:
            ValueError: The body is not a valid request.
        """
        try:
            fields = RequestFields(body)
            version = fields.whole("version", 0, 2**31)
        except ValueError as error:
            raise ValueError(f"this is not a request of a Mesh client ({error})") from error
        if version != VERSION:
            raise ValueError(
                f"the client uses version {version} of the attach protocol, this worker {VERSION}: "
                "install the same version of mesh-core on both"
            )
        try:
            verb = fields.word("verb", *_VERBS)
            request = AttachRequest(
                fields.octets("job", 16),
                fields.octets("token", 32),
                fields.whole("host", int(verb == SERVE), 2**32 - 1),
                fields.name("owner"),
                fields.seconds("lease_s"),
                fields.settings("config"),
                fields.texts("path"),
                fields.whole("epoch", 0, EPOCH_MAX),
                verb,
                fields.whole("generation", 0, EPOCH_MAX),
                fields.seconds("orphan_grace_s", may_be_0=True),
                fields.name("worker_id"),
                fields.strings("versions"),
                fields.texts("preload"),
                fields.blob("processes"),
            )
        except ValueError as error:
            raise ValueError(f"this is not a request of a Mesh client ({error})") from error
        try:
            check(request.config)
        except ConfigError as error:
            raise ValueError(
                f"it cannot apply the client's configuration ({error}): "
                "install the same version of mesh-core on both"
            ) from error
        return request


class AttachReply:
    """The reply of a worker that serves the job.

    Attributes:
        host_name: The host name of its machine.
        worker_id: The id of this worker, unique among all workers before and after it.
        differences: The packages that it has in other versions than the client, as text.
    """

    __slots__ = ("differences", "host_name", "worker_id")

    def __init__(self, host_name: str, worker_id: str, differences: Sequence[str] = ()) -> None:
        self.host_name: str = host_name
        self.worker_id: str = worker_id
        self.differences: Sequence[str] = differences

    def encode(self) -> str:
        """Return the text that `decode` parses."""
        return "\n".join((self.host_name, self.worker_id, *self.differences))

    @staticmethod
    def decode(text: bytes) -> AttachReply:
        """Parse the result of `encode`; any text is accepted."""
        host_name, *rest = text.decode(errors="replace").split("\n")
        return AttachReply(host_name, rest[0] if rest else "", rest[1:])


def this_program() -> str:
    """Return a readable name of this process for users of other machines."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename} (process {os.getpid()})"
