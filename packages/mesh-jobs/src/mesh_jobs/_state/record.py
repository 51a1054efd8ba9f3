"""The record of an applied job, `job.json`, with a schema version."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mesh_jobs._backend.report import Allocation
from mesh_jobs._errors import JobError
from mesh_jobs._spec import JobSpec

__all__ = ["SCHEMA", "Record", "this_owner"]

SCHEMA = 2


@dataclass(frozen=True)
class Record:
    """An applied job, as it is stored for later programs.

    Attributes:
        spec: The spec of the job.
        allocation_id: The id of the allocation, chosen before it is requested.
        allocation: The handle of the allocation; None until the backend has returned it.
        owner: The user, the host and the pid of the program that applied the job.
        applied: When the job was applied, in ISO format.
        resizing: The target of an unfinished resize.
        is_ending: Whether the allocation is being released.
    """

    spec: JobSpec
    allocation_id: str
    allocation: Allocation | None = None
    owner: Mapping[str, Any] = field(default_factory=lambda: this_owner())
    applied: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    resizing: JobSpec | None = None
    is_ending: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return values that `from_json` reads."""
        return {
            "schema": SCHEMA,
            "spec": self.spec.to_json(),
            "allocation_id": self.allocation_id,
            "allocation": self.allocation,
            "owner": dict(self.owner),
            "applied": self.applied,
            "resizing": self.resizing.to_json() if self.resizing else None,
            "is_ending": self.is_ending,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: object) -> Record:
        """Create a record from the values that `to_json` returned.

        Raises:
            JobError: The schema version differs, or the values are not a record.
        """
        schema = value.get("schema") if isinstance(value, Mapping) else None
        if schema != SCHEMA:
            raise JobError(
                f"{where} has schema {schema!r}, but this mesh-jobs supports schema {SCHEMA}: use "
                "the version that wrote it to kill the job"
            )
        try:
            resizing = value["resizing"]
            return cls(
                spec=JobSpec.from_json(value["spec"]),
                allocation_id=value["allocation_id"],
                allocation=value["allocation"],
                owner=value["owner"],
                applied=value["applied"],
                resizing=JobSpec.from_json(resizing) if resizing else None,
                is_ending=value["is_ending"],
            )
        except (KeyError, TypeError) as error:
            raise JobError(
                f"{where} is not a valid job state ({type(error).__name__}: {error}): it was "
                "edited by hand; restore its content"
            ) from error


def this_owner() -> dict[str, Any]:
    """Return the user, host and pid of this program."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # The user id of a container may have no name.
    return {"user": user, "host": socket.gethostname(), "pid": os.getpid()}
