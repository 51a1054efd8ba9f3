"""The kernel reports the user at the other end of a loopback connection."""

from __future__ import annotations

import os
import socket

from mesh_core.testing import wait_until
from mesh_telemetry._serve.peer_user import PeerUsers

LIMIT_S = 20.0


def test_the_user_of_a_peer_is_known_while_it_is_connected() -> None:
    users = PeerUsers()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            assert users.of(accepted) == os.getuid()
            client.close()
            wait_until(lambda: users.of(accepted) is None, LIMIT_S)
    users.close()


def test_no_user_is_known_after_close() -> None:
    users = PeerUsers()
    users.close()
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        accepted, _ = listening.accept()
        with accepted:
            assert users.of(accepted) is None
