"""Credentials with which the processes of a job authenticate connections between hosts."""

from __future__ import annotations

from contextlib import contextmanager
from os import fspath

from mesh_core._core import Keys
from mesh_core._errors import Unpicklable
from mesh_core._security.errors import CredentialsError
from mesh_core._security.local_credentials import local_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta
    from os import PathLike
    from typing import Any, Literal, NoReturn

__all__ = ["Credentials"]

_WEEK_S = 7 * 24 * 3600.0


class Credentials:
    """A certificate of one job with its key, and optionally the certificate authority of the job.

    The program that runs a job creates its credentials, stores them in a folder, and issues
    credentials for each worker, which loads them from its own folder. Connections between hosts are
    only established between credentials of the same job. Credentials expire after one week, or
    after `valid_for`; `rotate` replaces them while the job runs.

        credentials = Credentials.create()
        credentials.save("keys/controller")
        credentials.issue(role="worker", name="host-1").save("keys/host-1")

    Credentials are immutable, cannot be pickled, and do not show keys in their `repr`.
    """

    __slots__ = ("_keys",)

    _keys: Keys

    def __init__(self) -> None:
        """Raise TypeError; use `create` or `load` instead."""
        raise TypeError("credentials are created by Credentials.create or Credentials.load")

    @classmethod
    def create(
        cls,
        *,
        job: str | None = None,
        valid_for: timedelta | float = _WEEK_S,
        name: str = "controller",
    ) -> Credentials:
        """Create a certificate authority for a job, and the credentials of its controller.

        Args:
            job: The id of the job, 32 hexadecimal digits. Default: a random id.
            valid_for: The lifetime, in seconds or as a `timedelta`. Default: one week.
            name: The name of the controller in messages to others.

        Raises:
            CredentialsError: The id, the name or the lifetime is invalid.
        """
        with _converted_errors():
            return _credentials(Keys.create(job, _seconds(valid_for), name))

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Credentials:
        """Load credentials that `save` has written.

        Raises:
            CredentialsError: The credentials do not exist, are incomplete, or another user can use
                or change them.
        """
        with _converted_errors():
            return _credentials(Keys.load(fspath(folder)))

    @classmethod
    def local(cls, *, role: Literal["worker", "controller"] = "controller") -> Credentials:
        """Return the credentials that all programs of the current user on this machine share.

        Workers that listen on loopback, and programs that attach to them, use these if they have no
        explicit credentials. Their authority is created on first use and renewed before it expires.
        It is stored in `~/.mesh/local`, in `$MESH_HOME/local` if that is set, or in the runtime
        folder or `/tmp/mesh-local-UID` for a user without a home folder.

        Args:
            role: The role of this process.

        Raises:
            CredentialsError: No folder is available, or another user could use or change it.
        """
        return _credentials(local_keys(role))

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the credentials to a folder, created if needed, as files for their owner only.

        The write is atomic: a reader finds either the previous or the new credentials.

        Raises:
            CredentialsError: Other users can change the folder, or the system refuses the write.
        """
        with _converted_errors():
            self._keys.save(fspath(folder))

    def issue(self, *, role: Literal["worker", "controller"], name: str) -> Credentials:
        """Issue credentials for another process of the job, which cannot issue any itself.

        Raises:
            CredentialsError: These credentials cannot sign or have expired, or the name or role is
                invalid.
        """
        with _converted_errors():
            return _credentials(self._keys.issue(role, name))

    def rotate(self, *, valid_for: timedelta | float = _WEEK_S) -> Credentials:
        """Create the job's next certificate authority, and new credentials for this process.

        Open connections continue. Old and new credentials accept each other until the old ones
        expire or `forget_previous` is called. This leaves time to issue new ones to all processes.

        Raises:
            CredentialsError: These credentials cannot sign, or have expired; after expiry, only
                `create` helps.
        """
        with _converted_errors():
            return _credentials(self._keys.rotate(_seconds(valid_for)))

    def forget_previous(self) -> Credentials:
        """Return the same credentials without trust in the credentials before the last `rotate`.

        Credentials issued by the result refuse the old ones, for example because one was stolen.

        Raises:
            CredentialsError: These credentials cannot sign.
        """
        with _converted_errors():
            return _credentials(self._keys.forget_previous())

    def to_pem(self) -> tuple[bytes, bytes, bytes]:
        """Export the credentials for another TLS stack, such as a server or client next to Mesh.

        That stack must require the certificate of the peer. If it requires a host name, use
        `worker.mesh` or `controller.mesh`, according to the role of the peer.

        Returns:
            The private key, the certificate chain of its holder, and the certificates of the job's
            authorities, in PEM. The private key is not encrypted, and only the caller has this
            copy: do not store it anywhere.
        """
        key, chain, authorities = self._keys.to_pems()
        return key.encode(), chain.encode(), authorities.encode()

    @property
    def job(self) -> str:
        """The id of the job, 32 hexadecimal digits."""
        return self._keys.job

    @property
    def role(self) -> str:
        """The role of the process: `worker` or `controller`."""
        return self._keys.role

    @property
    def name(self) -> str:
        """The name of the process in messages to others."""
        return self._keys.name

    @property
    def generation(self) -> int:
        """The number of authorities of the job when these credentials were created."""
        return self._keys.generation

    @property
    def can_issue(self) -> bool:
        """Whether the credentials include the authority of the job."""
        return self._keys.has_authority

    @property
    def expires_at(self) -> datetime:
        """The time at which they expire, in UTC."""
        return _time(self._keys.expires_at_s)

    @property
    def renew_at(self) -> datetime:
        """The time at which to replace them, in UTC: after two thirds of their lifetime."""
        return _time(self._keys.renew_at_s)

    def __repr__(self) -> str:
        signs = ", can_issue=True" if self.can_issue else ""
        return (
            f"Credentials(job={self.job!r}, role={self.role!r}, name={self.name!r}, "
            f"generation={self.generation}, expires_at={self.expires_at.isoformat()!r}{signs})"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"credentials are immutable: create others with another {name!r}")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise Unpicklable(
            "credentials contain keys and cannot be sent in messages: save them in a folder, "
            "and load them on the other host"
        )


def _credentials(keys: Keys) -> Credentials:
    credentials = object.__new__(Credentials)
    object.__setattr__(credentials, "_keys", keys)
    return credentials


def _seconds(valid_for: timedelta | float) -> float:
    if isinstance(valid_for, (int, float)):
        return float(valid_for)
    return valid_for.total_seconds()


def _time(seconds: int) -> datetime:
    # Most programs never read the dates of credentials.
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp(seconds, UTC)


@contextmanager
def _converted_errors() -> Iterator[None]:
    """Convert errors of the native part to `CredentialsError`."""
    try:
        yield
    except ValueError as error:
        raise CredentialsError(str(error)) from None


# Tracebacks show the public name.
Credentials.__module__ = "mesh_core"
