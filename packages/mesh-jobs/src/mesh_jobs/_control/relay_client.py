"""The client side of relays, which reach the control service of a host through another host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from mesh_jobs._control.methods import METHODS
from mesh_jobs._control.relay import PIECE_LEN

__all__ = ["RelayClient"]


class RelayClient:
    """A local port that is relayed to the control port of a host.

    The relay carries TLS end to end, so a client without credentials of the job is rejected there.

    Args:
        gateway: A channel to the control service that relays.
        address: The address that the gateway connects to, as `name:port`.
    """

    def __init__(self, gateway: Any, address: str) -> None:
        self._gateway = gateway
        self._address = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target: str = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="mesh-relay", daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        method = METHODS["Relay"]
        call = self._gateway.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        # The caller sees any failure as the end of its connection.
        with caller:
            with suppress(OSError, grpc.RpcError):
                for piece in call(self._pieces(caller)):
                    caller.sendall(piece.content)
            with suppress(OSError):
                caller.shutdown(socket.SHUT_RDWR)

    def _pieces(self, caller: socket.socket) -> Iterator[Any]:
        piece = METHODS["Relay"].request
        yield piece(address=self._address)
        with suppress(OSError):
            while content := caller.recv(PIECE_LEN):
                yield piece(content=content)
