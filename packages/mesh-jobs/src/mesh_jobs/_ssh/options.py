"""The options of an SSH job: how ssh connects, and how workers run on the machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mesh_core import ConfigError
from mesh_jobs._spec import check_words

__all__ = ["SSHOptions", "SSHWorkerOptions"]


@dataclass(frozen=True, kw_only=True)
class SSHOptions:
    """How ssh connects to the machines.

        SSHJob({"trainers": ["node7"]}, options=SSHOptions(ssh_args=["-i", "key"]))

    Attributes:
        ssh_args: More arguments for ssh, one string each, such as `["-i", "key"]`.
        connect_timeout_s: The connection timeout in seconds for one machine.

    Raises:
        ConfigError: `ssh_args` is not a list.
    """

    ssh_args: Sequence[str] = ()
    connect_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        check_words("ssh_args", self.ssh_args)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the job's record."""
        return {"ssh_args": list(self.ssh_args), "connect_timeout_s": self.connect_timeout_s}


@dataclass(frozen=True, kw_only=True)
class SSHWorkerOptions:
    """How the workers of an SSH job run on their machines.

        SSHJob({"trainers": ["node7"]}, workers=SSHWorkerOptions(python="/opt/venv/bin/python"))

    Attributes:
        python: The Python interpreter on the machines.
        env: Additional environment variables of the workers.
        port: The port of the workers; 0 lets each worker select a free one.
        advertise: The name under which others reach a machine: `ssh` for the name that ssh connects
            to, `worker` for the address that the machine determines.

    Raises:
        ConfigError: `advertise` has another value.
    """

    python: str = "python3"
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    advertise: str = "ssh"

    def __post_init__(self) -> None:
        if self.advertise not in ("ssh", "worker"):
            raise ConfigError(f"advertise is {self.advertise!r}: give 'ssh' or 'worker'")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the job's record."""
        return {
            "python": self.python,
            "env": dict(self.env),
            "port": self.port,
            "advertise": self.advertise,
        }
