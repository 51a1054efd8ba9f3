"""What a process can count of those who connect to it."""

from __future__ import annotations

from typing import NamedTuple

from mesh_rdma import _core

__all__ = ["Refusals", "refusals", "visitors"]


class Refusals(NamedTuple):
    """How many have connected to this process and were not let in.

    Attributes:
        no_tls: They spoke no TLS where that is needed, or broke it off.
        no_secret: They did not know what is in a handle, or spoke another language.
        silent: They said nothing in time, or went away.
    """

    no_tls: int
    no_secret: int
    silent: int


def refusals() -> Refusals:
    """Counts who was not let in."""
    return Refusals(*_core.refusals())


def visitors() -> int:
    """Counts the connections of others to this process."""
    return _core.counts()[2]
