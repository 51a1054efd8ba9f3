"""The credentials of a job in the PEM format that gRPC requires."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from mesh_core import Credentials

__all__ = ["SERVER_NAME", "PemCredentials"]

#: The host name in the certificates of workers, which TLS verifies.
SERVER_NAME = "worker.mesh"


@dataclass(frozen=True, slots=True)
class PemCredentials:
    """A key, its certificate chain and its authorities in PEM format.

    Attributes:
        job: The id of the job.
        key: The private key of the process.
        chain: The certificate of the process, and the intermediate certificates up to an authority.
        authorities: The trusted authorities.
    """

    job: str
    key: bytes = field(repr=False)
    chain: bytes = field(repr=False)
    authorities: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load credentials that `Credentials.save` wrote.

        Raises:
            CredentialsError: The credentials are missing, or other users can read them.
        """
        return cls._of(Credentials.load(folder))

    @classmethod
    def local(cls, role: Literal["worker", "controller"]) -> Self:
        """Return the credentials that all programs of the current user share.

        Args:
            role: The role of this process.

        Raises:
            CredentialsError: The credentials cannot be created, or other users can read them.
        """
        return cls._of(Credentials.local(role=role))

    @classmethod
    def _of(cls, credentials: Credentials) -> Self:
        return cls(credentials.job, *credentials.to_pem())
