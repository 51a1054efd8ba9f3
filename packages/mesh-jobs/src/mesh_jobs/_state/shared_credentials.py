"""Whom this program trusts: all its jobs prove themselves to it with one authority.

A program has one set of credentials for its links, so jobs that it applies itself share theirs.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from mesh_core import Credentials
from mesh_jobs._errors import JobError

__all__ = ["trust_for_new_job", "trusted"]

# Shared only while it would serve a new job for long.
_LEFT_MIN = timedelta(days=7)

_trusted: tuple[int, Credentials] | None = None


def trust_for_new_job() -> Credentials | None:
    """Gives the credentials of this program's other jobs; None when a new job is its first."""
    if _trusted is None or _trusted[0] != os.getpid():
        return None
    credentials = _trusted[1]
    return credentials if credentials.expires_at - datetime.now(UTC) > _LEFT_MIN else None


def trusted(credentials: Credentials, *, is_attaching: bool, others: int) -> Credentials:
    """Notes that this program uses a job with these credentials.

    Args:
        credentials: Of the job's controller.
        is_attaching: Whether links are to be opened with them.
        others: How many other jobs the program is attached to.

    Raises:
        JobError: The program is attached to a job with another authority.
    """
    global _trusted
    mine = _trusted[1] if _trusted is not None and _trusted[0] == os.getpid() else None
    if is_attaching and others and mine is not None and mine.job != credentials.job:
        raise JobError(
            "this program is attached to a job that another program applied, and its links can "
            "prove themselves to one authority alone: detach from that job first, or apply both "
            "from this program"
        )
    if is_attaching or mine is None:
        _trusted = os.getpid(), credentials
    return credentials
