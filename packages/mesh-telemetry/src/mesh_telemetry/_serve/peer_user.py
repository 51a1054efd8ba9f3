"""Determines which user of this machine owns the other end of a loopback connection.

The kernel knows the user who created each socket. Only an established connection counts: a closed
socket has no owner, and is reported with the id of root.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

__all__ = ["PeerUsers"]

# The kernel's interface for sockets: linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NLMSG_HEAD = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_SOCKET_ID_PORTS = struct.Struct("!HH16s16s")
# No interface and no cookie.
_SOCKET_ID_REST = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ALL_STATES = 0xFFFFFFFF
_ESTABLISHED = 1
_STATE_AT = _NLMSG_HEAD.size + 1
_USER = struct.Struct("=I")
_USER_AT = _NLMSG_HEAD.size + 4 + 48 + 12
_REPLY_LEN_MAX = 4096
# The kernel replies immediately.
_TIMEOUT_S = 1.0


class PeerUsers:
    """Queries the kernel for the users of peers; not thread-safe."""

    def __init__(self) -> None:
        self._kernel: socket.socket | None = None
        # Some sandboxes do not support it.
        with suppress(OSError):
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
            self._kernel.settimeout(_TIMEOUT_S)

    def of(self, sock: socket.socket) -> int | None:
        """Return the user id of a peer; None if the kernel does not report it.

        Args:
            sock: A connection over IPv4 whose peer is on this machine.
        """
        if self._kernel is None:
            return None
        try:
            self._kernel.send(_request(sock))
            reply = self._kernel.recv(_REPLY_LEN_MAX)
        except OSError:
            return None
        _, kind, *_ = _NLMSG_HEAD.unpack_from(reply)
        if kind != _SOCK_DIAG_BY_FAMILY or reply[_STATE_AT] != _ESTABLISHED:
            return None
        user: int = _USER.unpack_from(reply, _USER_AT)[0]
        return user

    def close(self) -> None:
        """Close the socket to the kernel."""
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.close()


def _request(sock: socket.socket) -> bytes:
    """Return the request for the socket at the other end of a connection."""
    (peer, peer_port), (own, own_port) = sock.getpeername(), sock.getsockname()
    addresses = (socket.inet_aton(one).ljust(16, b"\0") for one in (peer, own))
    body = (
        _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
        + _SOCKET_ID_PORTS.pack(peer_port, own_port, *addresses)
        + _SOCKET_ID_REST
    )
    length = _NLMSG_HEAD.size + len(body)
    return _NLMSG_HEAD.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + body
