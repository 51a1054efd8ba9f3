"""Where a worker listens, as people write it: `tcp://host:port`."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["DEFAULT_PORT", "Address"]

DEFAULT_PORT = 26600
_ANY = ("*", "")


class Address:
    """A host and a port.

    Attributes:
        host: A name, an IPv4 or IPv6 address, or `*` for all that the machine has.
        port: 0 lets the system choose one.
    """

    __slots__ = ("host", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host: str = host
        self.port: int = port

    @staticmethod
    def parse(text: str) -> Address:
        """Reads `tcp://host:port`; scheme and port may be left out, IPv6 stands in brackets.

        Raises:
            ValueError: It is no such address.
        """
        scheme, found, rest = text.rpartition("://")
        if found and scheme not in ("tcp", "tls"):
            raise ValueError(f"{text!r} has scheme {scheme!r}: write tcp://host:port")
        if rest.startswith("["):
            host, bracket, port = rest[1:].partition("]")
            if not bracket or (port and not port.startswith(":")):
                raise ValueError(
                    f"{text!r} is no address: write IPv6 as tcp://[::1]:{DEFAULT_PORT}"
                )
            port = port[1:]
        elif rest.count(":") > 1:
            host, port = rest, ""
            try:
                ipaddress.IPv6Address(host)
            except ValueError:
                raise ValueError(f"{text!r} is no address: write tcp://host:port") from None
        else:
            host, _, port = rest.partition(":")
        if not host and not found:
            raise ValueError(f"{text!r} names no host: write tcp://host:port")
        if port and (not port.isdecimal() or int(port) > 65535):
            raise ValueError(f"{text!r} has port {port!r}: give a number from 0 to 65535")
        return Address("*" if host in _ANY else host, int(port) if port else DEFAULT_PORT)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def resolve(self) -> list[str]:
        """Gives all addresses that the host has, each as `address:port`.

        Raises:
            OSError: The name is not known.
        """
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        joined = (_joined(str(sockaddr[0]), int(sockaddr[1])) for *_, sockaddr in found)
        return list(dict.fromkeys(joined))

    def listen(self) -> socket.socket:
        """Listens there; on IPv4 and IPv6 where it stands for all addresses.

        Raises:
            OSError: The address is taken, or is none of this machine.
        """
        if self.host == "*":
            if socket.has_dualstack_ipv6():
                return socket.create_server(
                    ("", self.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096
                )
            return socket.create_server(("", self.port), backlog=4096)
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        family, *_, sockaddr = found[0]
        return socket.create_server(sockaddr[:2], family=family, backlog=4096)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and (self.host, self.port) == (other.host, other.port)

    def __hash__(self) -> int:
        return hash((self.host, self.port))

    def __str__(self) -> str:
        return f"tcp://{_joined(self.host, self.port)}"

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
