"""The credentials that all jobs of this process share.

A process authenticates its connections with one set of credentials, signed by one authority, so the
jobs that it applies itself share them.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from mesh_core import Credentials
from mesh_jobs._errors import JobError

__all__ = ["credentials_for_new_job", "share_credentials"]

# Credentials that expire sooner are not shared with a new job.
_LEFT_MIN = timedelta(days=7)

_shared: tuple[int, Credentials] | None = None


def credentials_for_new_job() -> Credentials | None:
    """Return the credentials of this program's other jobs; None if a new job is its first."""
    if _shared is None or _shared[0] != os.getpid():
        return None
    credentials = _shared[1]
    return credentials if credentials.expires_at - datetime.now(UTC) > _LEFT_MIN else None


def share_credentials(credentials: Credentials, *, is_attaching: bool, others: int) -> Credentials:
    """Record the credentials of a job as those of this process.

    Args:
        credentials: The credentials of the job's controller.
        is_attaching: Whether connections will be opened with them.
        others: The number of other jobs that the process is attached to.

    Raises:
        JobError: The program is attached to a job with another authority.
    """
    global _shared
    current = _shared[1] if _shared is not None and _shared[0] == os.getpid() else None
    if is_attaching and others and current is not None and current.job != credentials.job:
        raise JobError(
            "this program is attached to a job that another program applied, and its connections "
            "can authenticate with only one authority: detach from that job first, or apply both "
            "from this program"
        )
    if is_attaching or current is None:
        _shared = os.getpid(), credentials
    return credentials
