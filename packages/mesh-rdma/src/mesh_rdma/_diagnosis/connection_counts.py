"""Counters of connections to this process."""

from __future__ import annotations

from typing import NamedTuple

from mesh_rdma import _core

__all__ = ["RejectedConnections", "connected_peers", "rejected_connections"]


class RejectedConnections(NamedTuple):
    """The number of refused connections to this process, by reason.

    Attributes:
        no_tls: The peer did not use TLS where it is required, or aborted the handshake.
        no_secret: The peer did not know the secret of a handle, or used another protocol.
        silent: The peer sent nothing in time, or closed the connection.
        other_user: The peer of a local socket was a process of another user.
        evicted: The connection was closed in favor of a newer one, or because of a limit.
    """

    no_tls: int
    no_secret: int
    silent: int
    other_user: int
    evicted: int


def rejected_connections() -> RejectedConnections:
    """Return the number of connections that this process has refused."""
    return RejectedConnections(*_core.refusals())


def connected_peers() -> int:
    """Return the number of connections of other processes to this one."""
    return _core.counts()[2]
