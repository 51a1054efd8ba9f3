"""Concurrent calls of the control services of several hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh_jobs._backend.report import THIS_HOST, HostReport
from mesh_jobs._control.client import ControlClient
from mesh_jobs._control.control_error import ControlError
from mesh_jobs._control.pem_credentials import PemCredentials

__all__ = ["Access", "HostAnswer", "as_dict"]

_AT_ONCE = 32
_INSTALL = "pip install 'torchmesh-jobs[control]'"


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The response of one host's control service.

    Attributes:
        host: The host.
        value: The response; None if there is none.
        error: Why there is no response.
    """

    host: HostReport
    value: Any = None
    error: ControlError | None = None

    @property
    def where(self) -> str:
        """A human-readable name of the host."""
        return f"{self.host.mesh} host {self.host.rank}"

    def value_to_json(self) -> dict[str, Any]:
        """Return the response as plain values; there must be one."""
        return as_dict(self.value)


class Access:
    """Access to the control services of a job's hosts.

    Args:
        folder: The folder of the job.
        gateway: The address of a control service that forwards calls to the others, if they cannot
            be reached from here.

    Raises:
        CredentialsError: Other users can read the job's credentials, or the credentials are
            incomplete; or the job has none, and those of the user are unavailable.
    """

    def __init__(self, folder: str, gateway: str | None = None) -> None:
        keys = Path(folder) / "keys" / "controller"
        self._pem: PemCredentials = (
            PemCredentials.load(keys) if keys.is_dir() else PemCredentials.local("controller")
        )
        self._gateway: ControlClient | None = None
        if gateway is not None:
            self._gateway = ControlClient(gateway, self._pem)

    def open(self, host: HostReport) -> ControlClient:
        """Connect to the control service of a host.

        Raises:
            ControlError: The host has no control service.
        """
        if host.address == THIS_HOST:
            raise ControlError("it is this machine, without a worker: use ps and top")
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
        """Call several hosts concurrently; return the response or the error of each."""

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
    """Convert a message to plain values, with all fields and lower-case names of enum values."""
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
