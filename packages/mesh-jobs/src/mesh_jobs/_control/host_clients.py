"""Calling the control services of several hosts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh_jobs._backend.report import THIS_HOST, HostReport
from mesh_jobs._control.client import ControlClient, ControlError
from mesh_jobs._control.pem import Pem

__all__ = ["Access", "HostAnswer", "as_dict"]

_AT_ONCE = 32
_INSTALL = "pip install 'mesh-jobs[control]'"


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What the control service of one host has answered.

    Attributes:
        host: The host.
        value: The answer; None where there is none.
        error: Why there is none.
    """

    host: HostReport
    value: Any = None
    error: ControlError | None = None

    @property
    def where(self) -> str:
        """Which host it is, in words."""
        return f"{self.host.mesh} host {self.host.rank}"


class Access:
    """How the hosts of a job are called from here.

    Args:
        folder: The folder of the job.
        gateway: Where a control service listens that reaches the others, where they are not
            reached from here.

    Raises:
        CredentialsError: The job's credentials can be used by others, or are not whole; or the job
            has none, and those of the user cannot be had.
    """

    def __init__(self, folder: str, gateway: str | None = None) -> None:
        keys = Path(folder) / "keys" / "controller"
        self._pem: Pem = Pem.load(keys) if keys.is_dir() else Pem.local("controller")
        self._gateway: ControlClient | None = None
        if gateway is not None:
            self._gateway = ControlClient(gateway, self._pem)

    def open(self, host: HostReport) -> ControlClient:
        """Connects to the control service of a host.

        Raises:
            ControlError: It has none.
        """
        if host.address == THIS_HOST:
            raise ControlError("it is this machine, without a worker: look with ps and top")
        if not host.is_up:
            raise ControlError(f"it is {host.state}" + (f": {host.reason}" if host.reason else ""))
        if host.control is None:
            raise ControlError(
                f"its worker has no control service: {_INSTALL} there, and apply again"
            )
        return ControlClient(host.control, self._pem, self._gateway)

    def call(
        self, hosts: Sequence[HostReport], call: Callable[[ControlClient], Any]
    ) -> list[HostAnswer]:
        """Calls hosts, all at once; gives for each the answer, or why there is none."""

        def one(host: HostReport) -> HostAnswer:
            try:
                with self.open(host) as client:
                    return HostAnswer(host, call(client))
            except ControlError as error:
                return HostAnswer(host, error=error)

        if not hosts:
            return []
        with ThreadPoolExecutor(min(_AT_ONCE, len(hosts))) as pool:
            return list(pool.map(one, hosts))


def as_dict(message: Any) -> dict[str, Any]:
    """Gives a message as plain values, with all its fields; values of enums in lower case."""
    plain: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None:
            if hasattr(value, "append"):
                plain[field.name] = [as_dict(one) for one in value]
            else:
                plain[field.name] = as_dict(value) if message.HasField(field.name) else None
        elif field.enum_type is not None:
            plain[field.name] = field.enum_type.values_by_number[value].name.lower()
        else:
            plain[field.name] = value
    return plain
