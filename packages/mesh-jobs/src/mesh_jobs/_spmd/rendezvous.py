"""Rendezvous of a script's ranks: an address of the first host, and a port reserved there.

Each host connects to the names of the first host, and a name counts as an address of that host only
if a random token is served there. A socket that never listens stays bound to the reserved port
until the run is over, so the system assigns the port to no other process. The script can still
listen on it, as long as it sets SO_REUSEADDR, as servers usually do.
"""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_core import Actor, endpoint
from mesh_jobs._errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_core import ProcMesh

__all__ = ["MasterAddress", "MasterReservation"]

_CALL_LIMIT_S = 3.0
_TOKEN_LEN = 16
# Documentation addresses: no packet is sent, but the system selects the source address.
_DOCUMENTATION_ADDRESSES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


@dataclass(frozen=True, slots=True)
class MasterCandidate:
    """Names of the first host that may be reachable, and how to verify them."""

    names: tuple[str, ...]
    port: int
    """The port that serves the token."""
    token: bytes
    reserved_port: int
    """The port that is reserved for the script."""


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """`MASTER_ADDR` and `MASTER_PORT`."""

    address: str
    port: int


class Rendezvous(Actor):
    """Actor that reserves a port on the first host, and checks from each host how to reach it."""

    def __init__(self) -> None:
        self._reserved: socket.socket | None = None
        self._listener: socket.socket | None = None

    @endpoint
    def offer(self, is_alone: bool) -> MasterCandidate:
        """Reserve a port, and start serving a token on another one."""
        self._reserved = _bound()
        self._listener = _bound()
        self._listener.listen(1024)
        token = secrets.token_bytes(_TOKEN_LEN)
        threading.Thread(
            target=_serve_token, args=(self._listener, token), name="mesh-rendezvous", daemon=True
        ).start()
        names = ["localhost", *_names()] if is_alone else [*_names(), "localhost"]
        ports = _port_of(self._listener), _port_of(self._reserved)
        return MasterCandidate(tuple(dict.fromkeys(names)), ports[0], token, ports[1])

    @endpoint
    def reserve_another_port(self) -> int:
        """Reserve another port for the script, which differs from the previous one."""
        previous, self._reserved = self._reserved, _bound()
        if previous is not None:
            previous.close()
        return _port_of(self._reserved)

    @endpoint
    def reachable_names(self, candidate: MasterCandidate) -> set[str]:
        """Return the names under which this host reaches the first host."""
        found: set[str] = set()
        callers = [
            threading.Thread(target=_probe, args=(name, candidate, found), daemon=True)
            for name in candidate.names
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        return found

    def __cleanup__(self, error: Exception | None) -> None:
        for one in (self._reserved, self._listener):
            if one is not None:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()


class MasterReservation:
    """An address of the first host that all hosts reach, and a port that is reserved there.

    The port stays reserved as long as the processes run.

    Args:
        first_of_hosts: One process on each host, starting with the host of rank 0.

    Raises:
        JobError: Some host cannot reach the first under any of its names.

    Attributes:
        master: The address and the port that is reserved now.
    """

    def __init__(self, first_of_hosts: ProcMesh) -> None:
        actors = first_of_hosts.spawn("rendezvous", Rendezvous)
        self._first = actors.flatten("rank").slice(rank=0)
        candidate = self._first.offer.call_one(len(actors) == 1).get()
        reachable_names = actors.reachable_names.call(candidate).get().values()
        self.master = MasterAddress(_common(candidate, reachable_names), candidate.reserved_port)

    def renew(self) -> MasterAddress:
        """Reserve another port instead, which no process of an earlier round has used."""
        port = self._first.reserve_another_port.call_one().get()
        self.master = MasterAddress(self.master.address, port)
        return self.master


def _common(candidate: MasterCandidate, reachable_names: Sequence[set[str]]) -> str:
    """Return the first name that is reachable from all hosts.

    Raises:
        JobError: No name is reachable from all hosts.
    """
    for name in candidate.names:
        if all(name in found for found in reachable_names):
            return name
    lost = next((rank for rank, found in enumerate(reachable_names) if not found), None)
    who = "no name is reachable from all hosts" if lost is None else f"host {lost} cannot connect"
    raise JobError(
        f"the other hosts cannot reach the first host as {', '.join(candidate.names)} ({who}): set "
        "MASTER_ADDR and MASTER_PORT in env"
    )


def _port_of(bound: socket.socket) -> int:
    port: int = bound.getsockname()[1]
    return port


def _bound() -> socket.socket:
    """Bind a port that the system chooses, for IPv6 and IPv4 if both are available."""
    is_dual = socket.has_dualstack_ipv6()
    bound = socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_dual:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    bound.bind(("", 0))
    return bound


def _names() -> Iterable[str]:
    """Yield the names and addresses under which others may reach this host, preferred first."""
    host = socket.gethostname()
    yield socket.getfqdn()
    yield host
    for family, elsewhere in _DOCUMENTATION_ADDRESSES:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            yield probe.getsockname()[0]
    with suppress(OSError):
        for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            yield str(found[4][0])


def _serve_token(listener: socket.socket, token: bytes) -> None:
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return  # Closed: the run is over.
        with caller, suppress(OSError):
            caller.sendall(token)


def _probe(name: str, candidate: MasterCandidate, found: set[str]) -> None:
    with suppress(OSError):
        address = (name, candidate.port)
        with socket.create_connection(address, timeout=_CALL_LIMIT_S) as connection:
            received = b""
            while part := connection.recv(_TOKEN_LEN):
                received += part
            if received == candidate.token:
                found.add(name)
