"""What a process can count of those who connect to it."""

from __future__ import annotations

from typing import NamedTuple

from mesh_rdma import _core

__all__ = ["Refusals", "refusals", "visitors"]


class Refusals(NamedTuple):
    """How many connections to this process were refused.

    Attributes:
        no_tls: They spoke no TLS where that is needed, or broke it off.
        no_secret: They did not know what is in a handle, or spoke another language.
        silent: They said nothing in time, or went away.
        other_user: They came over the local socket from a process of another user.
        evicted: They were closed to make room for newer connections, or there was no room.
    """

    no_tls: int
    no_secret: int
    silent: int
    other_user: int
    evicted: int


def refusals() -> Refusals:
    """Counts the connections that this process has refused."""
    return Refusals(*_core.refusals())


def visitors() -> int:
    """Counts the connections of others to this process."""
    return _core.counts()[2]
