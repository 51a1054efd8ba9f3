"""The address on which a worker listens, and the address to which clients connect."""

from __future__ import annotations

import os
import socket

from mesh_core._hosts.address import Address

__all__ = ["ListenAddress"]

_INHERITED = "fd://"


class ListenAddress:
    """The `--listen` argument of a worker.

    Attributes:
        bound: The address of the socket; its port is 0 until the system has selected one.
    """

    __slots__ = ("_dial", "_socket", "bound")

    def __init__(
        self, bound: Address, dial: Address | None, inherited: socket.socket | None
    ) -> None:
        self.bound: Address = bound
        self._dial = dial
        self._socket = inherited

    @staticmethod
    def parse(text: str) -> ListenAddress:
        """Parse an address to listen on.

        It is one of `tcp://host:port`, `fd://3` for a listening socket that this process has
        inherited, and `DIAL@BIND`: clients connect to the first address, for example through NAT,
        and the worker listens on the second one.

        Raises:
            ValueError: The text is not an address, or the descriptor is not a listening TCP socket.
        """
        first, is_alias, second = text.partition("@")
        dial = Address.parse(first) if is_alias else None
        if dial is not None and dial.host == "*":
            raise ValueError(
                f"{text!r} does not name a machine before the @: write the address that clients use"
            )
        bind = second if is_alias else first
        if bind.startswith(_INHERITED):
            inherited = _inherited(bind)
            return ListenAddress(_address_of(inherited), dial, inherited)
        return ListenAddress(Address.parse(bind), dial, None)

    def listen(self) -> socket.socket:
        """Return the listening socket.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        return self._socket or self.bound.listen()

    def reached_at(self, listener: socket.socket) -> Address:
        """Return the address that clients connect to."""
        port = listener.getsockname()[1]
        if self._dial is not None:
            return Address(self._dial.host, self._dial.port or port)
        return Address(socket.gethostname() if self.bound.host == "*" else self.bound.host, port)


def _inherited(text: str) -> socket.socket:
    """Return the listening socket in an address such as `fd://3`."""
    number = text.removeprefix(_INHERITED)
    if not number.isdecimal():
        raise ValueError(f"{text!r} is not a descriptor: write fd://3")
    try:
        found = socket.socket(fileno=int(number))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise ValueError(f"{text!r} is not a socket of this process: {why}") from None
    is_internet = found.family in (socket.AF_INET, socket.AF_INET6)
    if not is_internet or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        found.detach()
        raise ValueError(f"{text!r} is not a listening TCP socket")
    found.set_inheritable(False)
    return found


def _address_of(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address.parse(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
