"""What is stored of an applied job: `job.json`, with a version of its own."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mesh_jobs._backend.report import Ticket
from mesh_jobs._errors import JobError
from mesh_jobs._spec import JobSpec

__all__ = ["SCHEMA", "Record", "this_owner"]

SCHEMA = 1


@dataclass(frozen=True)
class Record:
    """An applied job, as any program finds it.

    Attributes:
        spec: What was asked for.
        order_id: Under what id it was ordered; known before anything is submitted.
        ticket: With what the backend finds it; None until the backend has answered.
        owner: Who has applied it: user, host and pid.
        applied: When, in ISO format.
        resizing: What it is being resized to, until that is done.
        is_ending: Whether it is being given back.
    """

    spec: JobSpec
    order_id: str
    ticket: Ticket | None = None
    owner: Mapping[str, Any] = field(default_factory=lambda: this_owner())
    applied: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    resizing: JobSpec | None = None
    is_ending: bool = False

    def to_json(self) -> dict[str, Any]:
        """Gives plain values that `from_json` reads."""
        return {
            "schema": SCHEMA,
            "spec": self.spec.to_json(),
            "order_id": self.order_id,
            "ticket": self.ticket,
            "owner": dict(self.owner),
            "applied": self.applied,
            "resizing": self.resizing.to_json() if self.resizing else None,
            "is_ending": self.is_ending,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: object) -> Record:
        """Reads what `to_json` gave.

        Raises:
            JobError: It was written by another version, or is none.
        """
        schema = value.get("schema") if isinstance(value, Mapping) else None
        if schema != SCHEMA:
            raise JobError(
                f"{where} has schema {schema!r}, this is mesh-jobs for schema {SCHEMA}: use the "
                "version that wrote it to kill the job"
            )
        try:
            resizing = value["resizing"]
            return cls(
                spec=JobSpec.from_json(value["spec"]),
                order_id=value["order_id"],
                ticket=value["ticket"],
                owner=value["owner"],
                applied=value["applied"],
                resizing=JobSpec.from_json(resizing) if resizing else None,
                is_ending=value["is_ending"],
            )
        except (KeyError, TypeError) as error:
            raise JobError(
                f"{where} is no job's state ({type(error).__name__}: {error}): it was changed by "
                "hand; put back what was there"
            ) from error


def this_owner() -> dict[str, Any]:
    """Says who this program is."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # A container may run as a user that nobody has named.
    return {"user": user, "host": socket.gethostname(), "pid": os.getpid()}
