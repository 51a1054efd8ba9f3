"""Tools of an attacker: sockets on a host, stolen credentials, arbitrary bytes."""

from __future__ import annotations

import os
import pickle
import socket
import ssl
import struct
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts.world import Host

#: Time limit within which a worker must close a connection that it rejects.
PATIENCE_S = 5.0

HEAD_LEN = 64
HELLO, WELCOME, PING, ATTACH, ATTACHED, CALL = 1, 2, 4, 5, 6, 16
NOBODY = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True)
class Proc:
    """A process of a job, as identified in frames."""

    host: int
    slot: int = 0

    @property
    def number(self) -> int:
        """The host and the slot in one integer."""
        return self.host << 32 | self.slot


def head(
    kind: int,
    tail_len: int,
    *,
    to: int = NOBODY,
    sender: int = NOBODY,
    seq: int = 0,
    port: int = 0,
    magic: int = 0xA7,
    version: int = 1,
    meta_len: int = 0,
) -> bytes:
    """Return the head of a frame; see docs/protocol/frame.md."""
    fixed = struct.pack("<BBBBI", magic, version, kind, 0, tail_len)
    places = struct.pack("<QQQQQQ", seq, 0, to, port, sender, 0)
    return fixed + places + struct.pack("<IHBB", 0, meta_len, 0, 0)


def frame(kind: int, tail: bytes, *, to: int = NOBODY, sender: int = NOBODY) -> bytes:
    """Return a well-formed frame."""
    return head(kind, len(tail), to=to, sender=sender) + tail


def hello(me: Proc, to: Proc, job: bytes, token: bytes, incarnation: int = 0) -> bytes:
    """Return the HELLO frame of a process."""
    tail = job + token + struct.pack("<IIQ", incarnation, 0, 0)
    return frame(HELLO, tail, to=to.number, sender=me.number)


class Bomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        """Create an object for the file `path`."""
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.open, (str(self._path), os.O_CREAT | os.O_WRONLY)


def bomb(path: Path) -> bytes:
    """Return a pickle that creates a file when it is loaded."""
    return pickle.dumps(Bomb(path))


def tls(keys: Path | None, *, is_server: bool = False) -> ssl.SSLContext:
    """Return the TLS context of a member, with the credentials in `keys` or without credentials."""
    protocol = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["mesh/1"])
    if keys is not None:
        context.load_cert_chain(keys / "identity.pem")
    return context


def old_tls() -> ssl.SSLContext:
    """Return a TLS context that supports TLS 1.2 at most."""
    context = tls(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


class Connection:
    """A connection to a port, with TLS if a context is given."""

    def __init__(
        self, host: Host, address: str, port: int, context: ssl.SSLContext | None = None
    ) -> None:
        """Connect from a host.

        Raises:
            OSError: The connection was refused, or the TLS handshake failed.
        """
        self._socket: socket.socket = host.connect(address, port, PATIENCE_S)
        if context is not None:
            try:
                self._socket = context.wrap_socket(self._socket, server_hostname="mesh")
            except OSError:
                self._socket.close()
                raise

    @classmethod
    def of(cls, connected: socket.socket) -> Connection:
        """Wrap a socket that is already connected."""
        connection = cls.__new__(cls)
        connection._socket = connected
        connected.settimeout(PATIENCE_S)
        return connection

    def send(self, data: bytes) -> None:
        """Send the data, and ignore a closed connection."""
        with suppress(OSError):
            self._socket.sendall(data)

    def stop_sending(self) -> None:
        """Shut down the sending side."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def receive(self, limit_s: float = PATIENCE_S) -> bytes:
        """Return the next bytes, or `b""` at the end of the stream.

        Raises:
            TimeoutError: Neither data nor the end of the stream arrived in time.
        """
        self._socket.settimeout(limit_s)
        try:
            return self._socket.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:
            return b""

    def frame(self) -> tuple[int, bytes]:
        """Return the kind and the tail of the next frame; kind 0 at the end of the stream."""
        data = b""
        while len(data) < HEAD_LEN or len(data) < HEAD_LEN + _tail_len(data):
            piece = self.receive()
            if not piece:
                return 0, data
            data += piece
        return data[2], data[HEAD_LEN:]

    def is_ended(self) -> bool:
        """Return True when the peer has closed the connection; data before that is ignored.

        Raises:
            TimeoutError: The peer did not close the connection.
        """
        while self.receive():
            pass
        return True

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tail_len(data: bytes) -> int:
    return int.from_bytes(data[4:8], "little")
