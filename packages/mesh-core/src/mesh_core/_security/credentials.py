"""What the processes of a job prove themselves with, when their link leaves the host."""

from __future__ import annotations

from contextlib import contextmanager
from os import fspath

from mesh_core._core import Keys
from mesh_core._errors import MeshError, Unpicklable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta
    from os import PathLike
    from typing import Any, Literal, NoReturn

__all__ = ["Credentials", "CredentialsError"]

_WEEK_S = 7 * 24 * 3600.0


class CredentialsError(MeshError, ValueError):
    """Credentials cannot be made, read, or used: the message says why, and what to do.

    Among the reasons: a key file that others can read, or that belongs to another user.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Credentials:
    """A certificate of one job with its key, and the job's authority where the job is run.

    Whoever runs a job makes its credentials, keeps them in a folder, and issues others for each
    worker, which loads them from a folder of its own. Links between hosts are opened only among
    credentials of the same job. They end after a week, or after `valid_for`; `rotate` replaces them
    while the job runs.

        credentials = Credentials.create()
        credentials.save("keys/controller")
        credentials.issue(role="worker", name="host-1").save("keys/host-1")

    They never change, cannot be pickled, and show no key when they are printed.
    """

    __slots__ = ("_keys",)

    _keys: Keys

    def __init__(self) -> None:
        """Refuses: see `create` and `load`."""
        raise TypeError("credentials are made by Credentials.create or Credentials.load")

    @classmethod
    def create(
        cls,
        *,
        job: str | None = None,
        valid_for: timedelta | float = _WEEK_S,
        name: str = "controller",
    ) -> Credentials:
        """Makes a job's authority, and the credentials of its controller.

        Args:
            job: The job's id, 32 hexadecimal digits; a random one when left out.
            valid_for: How long they live, in seconds or as a `timedelta`.
            name: The controller's name, in the messages of others.

        Raises:
            CredentialsError: The id, the name or the lifetime is not one.
        """
        with _in_our_words():
            return _credentials(Keys.create(job, _seconds(valid_for), name))

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Credentials:
        """Reads what `save` wrote.

        Raises:
            CredentialsError: They are not there, not whole, or can be used or changed by another
                user.
        """
        with _in_our_words():
            return _credentials(Keys.load(fspath(folder)))

    @classmethod
    def local(cls, *, role: Literal["worker", "controller"] = "controller") -> Credentials:
        """Returns credentials that all programs of the current user on this machine share.

        Workers that listen on loopback and programs that attach to them use these when they are
        given no credentials. Their authority is created on first use and renewed before it expires.
        It is kept in `~/.mesh/local`, in `$MESH_HOME/local` if that is set, or in the runtime
        folder or `/tmp/mesh-local-UID` for a user without a home folder.

        Args:
            role: The role of this process.

        Raises:
            CredentialsError: No folder is available, or another user could use or change it.
        """
        # Not at the top: it depends on this module, and most programs never need it.
        from mesh_core._security.local_credentials import local_keys

        return _credentials(local_keys(role))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes them into a folder, made when there is none, as files for their owner alone.

        A reader finds what was there before or all of the new, never a part.

        Raises:
            CredentialsError: The folder can be changed by others, or the system refuses.
        """
        with _in_our_words():
            self._keys.save(fspath(folder))

    def issue(self, *, role: Literal["worker", "controller"], name: str) -> Credentials:
        """Makes the credentials of another process of the job, which cannot issue any.

        Raises:
            CredentialsError: These cannot sign, have expired, or the name or role is not one.
        """
        with _in_our_words():
            return _credentials(self._keys.issue(role, name))

    def rotate(self, *, valid_for: timedelta | float = _WEEK_S) -> Credentials:
        """Makes the job's next authority, and new credentials for this process.

        Links that are open go on. Old and new credentials open links with each other until the old
        ones expire, or `forget_previous`; so there is time to issue new ones to everyone.

        Raises:
            CredentialsError: These cannot sign, or have expired: then only `create` helps.
        """
        with _in_our_words():
            return _credentials(self._keys.rotate(_seconds(valid_for)))

    def forget_previous(self) -> Credentials:
        """Gives the same credentials without belief in those from before the last `rotate`.

        What is issued by the result refuses the old ones, as when one of them was stolen.

        Raises:
            CredentialsError: These cannot sign.
        """
        with _in_our_words():
            return _credentials(self._keys.forget_previous())

    def to_pem(self) -> tuple[bytes, bytes, bytes]:
        """Gives them to another TLS stack, one that serves or asks beside the mesh.

        Such a stack has to ask for the certificate of the other side. Where it insists on the name
        of a host, that is `worker.mesh` or `controller.mesh`, by the role of the other side.

        Returns:
            The private key, the certificates of its holder, and those of the job's authorities, in
            PEM. The key is in no other hands than the caller's now: write it nowhere.
        """
        key, chain, authorities = self._keys.to_pems()
        return key.encode(), chain.encode(), authorities.encode()

    @property
    def job(self) -> str:
        """The job's id, 32 hexadecimal digits."""
        return self._keys.job

    @property
    def role(self) -> str:
        """What the process may be: `worker` or `controller`."""
        return self._keys.role

    @property
    def name(self) -> str:
        """The name of the process, in the messages of others."""
        return self._keys.name

    @property
    def generation(self) -> int:
        """How many authorities the job has had when these were made."""
        return self._keys.generation

    @property
    def can_issue(self) -> bool:
        """Whether these hold the authority of the job."""
        return self._keys.has_authority

    @property
    def expires_at(self) -> datetime:
        """When they end, in UTC."""
        return _time(self._keys.expires_at_s)

    @property
    def renew_at(self) -> datetime:
        """When to replace them, in UTC: two thirds through their life."""
        return _time(self._keys.renew_at_s)

    def __repr__(self) -> str:
        signs = ", can_issue=True" if self.can_issue else ""
        return (
            f"Credentials(job={self.job!r}, role={self.role!r}, name={self.name!r}, "
            f"generation={self.generation}, expires_at={self.expires_at.isoformat()!r}{signs})"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"credentials never change: make others to have another {name!r}")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise Unpicklable(
            "credentials hold keys and are not sent in messages: save them in a folder, "
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
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Makes a `CredentialsError` of what the native part refuses."""
    try:
        yield
    except ValueError as error:
        raise CredentialsError(str(error)) from None


# A traceback names them as a program does.
Credentials.__module__ = "mesh_core"
CredentialsError.__module__ = "mesh_core"
