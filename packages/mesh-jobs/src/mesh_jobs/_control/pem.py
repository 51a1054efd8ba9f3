"""A job's credentials as gRPC wants them: its own words for key, chain and authorities."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from mesh_core import Credentials

__all__ = ["SERVER_NAME", "Pem"]

#: The name in the certificates of workers, for TLS that insists on one.
SERVER_NAME = "worker.mesh"


@dataclass(frozen=True, slots=True)
class Pem:
    """Key, chain and authorities as text.

    Attributes:
        job: The id of the job.
        key: The key of the process.
        chain: Its certificate, and what leads from there to an authority.
        authorities: Whom it believes.
    """

    job: str
    key: bytes = field(repr=False)
    chain: bytes = field(repr=False)
    authorities: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads credentials that `Credentials.save` wrote.

        Raises:
            CredentialsError: They are not there, or can be used by others.
        """
        return cls._of(Credentials.load(folder))

    @classmethod
    def local(cls, role: Literal["worker", "controller"]) -> Self:
        """Returns the credentials that all programs of the current user share.

        Args:
            role: The role of this process.

        Raises:
            CredentialsError: They cannot be created, or can be used by others.
        """
        return cls._of(Credentials.local(role=role))

    @classmethod
    def _of(cls, credentials: Credentials) -> Self:
        return cls(credentials.job, *credentials.to_pem())
