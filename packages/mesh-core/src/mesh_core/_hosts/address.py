"""Addresses of workers, written as `tcp://host:port`."""

from __future__ import annotations

import errno
import ipaddress
import socket

__all__ = ["DEFAULT_PORT", "Address"]

DEFAULT_PORT = 26600
_ANY = ("*", "", "::", "0.0.0.0")


class Address:
    """A host and a port.

    Attributes:
        host: A name, an IPv4 or IPv6 address, or `*` for all addresses of the machine.
        port: The port; 0 lets the system select one.
    """

    __slots__ = ("host", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host: str = host
        self.port: int = port

    @staticmethod
    def parse(text: str) -> Address:
        """Parse `tcp://host:port`; scheme and port are optional, and IPv6 addresses need brackets.

        Raises:
            ValueError: The text is not an address.
        """
        scheme, found, rest = text.rpartition("://")
        if scheme in ("ipc", "unix"):
            raise ValueError(
                f"{text!r} has scheme {scheme!r}: workers listen on TCP; tcp://127.0.0.1:PORT "
                "serves only programs of the worker's user"
            )
        if found and scheme not in ("tcp", "tls"):
            raise ValueError(f"{text!r} has scheme {scheme!r}: write tcp://host:port")
        if "/" in rest or any(map(str.isspace, rest)):
            raise ValueError(f"{text!r} is not an address: write tcp://host:port")
        if rest.startswith("["):
            host, bracket, port = rest[1:].partition("]")
            if not bracket or (port and not port.startswith(":")):
                raise ValueError(
                    f"{text!r} is not an address: write IPv6 as tcp://[::1]:{DEFAULT_PORT}"
                )
            has_port, port = bool(port), port[1:]
        elif rest.count(":") > 1:
            host, has_port, port = rest, False, ""
            try:
                ipaddress.IPv6Address(host)
            except ValueError:
                raise ValueError(f"{text!r} is not an address: write tcp://host:port") from None
        else:
            host, colon, port = rest.partition(":")
            has_port = bool(colon)
        if not host and not found:
            raise ValueError(f"{text!r} has no host: write tcp://host:port")
        if has_port and (not port.isdecimal() or int(port) > 65535):
            raise ValueError(f"{text!r} has port {port!r}: give a number from 0 to 65535")
        return Address("*" if host in _ANY else host, int(port) if port else DEFAULT_PORT)

    @staticmethod
    def parse_reachable(text: str) -> Address:
        """Parse an address to connect to rather than to listen on.

        Of `DIAL@BIND`, the form for workers behind NAT, this is the first address.

        Raises:
            ValueError: The text is not an address, or a client cannot connect to it.
        """
        address = Address.parse(text.partition("@")[0])
        if address.host == "*":
            raise ValueError(f"{text!r} does not name a machine: use a host name or an address")
        if address.port == 0:
            raise ValueError(f"{text!r} has port 0: use the port that the worker printed")
        return address

    @property
    def name(self) -> str:
        """The address as `host:port`, for resolvers."""
        return _joined(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def resolve(self) -> list[str]:
        """Return all resolved addresses of the host, each as `address:port`.

        Raises:
            OSError: The name cannot be resolved.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            text = f"{self.host} cannot be resolved here: correct the name, or use an address"
            raise OSError(text) from None
        joined = (_joined(str(sockaddr[0]), int(sockaddr[1])) for *_, sockaddr in found)
        return list(dict.fromkeys(joined))

    def listen(self) -> socket.socket:
        """Listen on the address; `*` listens on IPv4 and IPv6.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        try:
            return self._listen()
        except OSError as error:
            why = {
                errno.EADDRINUSE: "is in use: stop the process that has it, or use another port",
                errno.EADDRNOTAVAIL: "is not one of this machine: use tcp://*:PORT for all of them",
                errno.EACCES: "has a port that only root can use: use one above 1023",
            }.get(error.errno or 0, f"cannot be listened on: {error.strerror or error}")
            if isinstance(error, socket.gaierror):
                why = "has a name that cannot be resolved here: correct it, or use an address"
            raise OSError(error.errno, f"{self} {why}") from None

    def _listen(self) -> socket.socket:
        if self.host == "*":
            if socket.has_dualstack_ipv6():
                return socket.create_server(
                    ("", self.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096
                )
            return socket.create_server(("", self.port), backlog=4096)
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        family, *_, sockaddr = found[0]
        if not self.is_loopback and ipaddress.ip_address(sockaddr[0]).is_loopback:
            # On many machines, /etc/hosts maps their own name to such an address.
            text = f"resolves to {sockaddr[0]} here, which other machines cannot reach"
            raise OSError(errno.EADDRNOTAVAIL, text)
        return socket.create_server(sockaddr[:2], family=family, backlog=4096)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and (self.host, self.port) == (other.host, other.port)

    def __hash__(self) -> int:
        return hash((self.host, self.port))

    def __str__(self) -> str:
        return f"tcp://{self.name}"

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
