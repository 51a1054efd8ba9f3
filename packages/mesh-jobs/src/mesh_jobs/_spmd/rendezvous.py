"""Where the ranks of a script meet: a name of the first host that all know, and a port kept free.

Whether a name leads to the first host is not guessed: each host calls there, and takes it for the
first host when it answers with the right word. The port stays bound until the run is over, by a
socket that never listens, so that the system gives it to nobody else in the meantime; the script
can listen on it all the same, as long as it sets SO_REUSEADDR like everybody who serves.
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
    from collections.abc import Iterable

    from mesh_core import ProcMesh

__all__ = ["MeetingPoint", "find_meeting_point"]

_CALL_LIMIT_S = 3.0
_WORD_LEN = 16
# Documentation addresses: nothing is sent, but the system says from where it would be.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


@dataclass(frozen=True, slots=True)
class Invitation:
    """How the first host may be called, and how it is known."""

    names: tuple[str, ...]
    port: int
    """Where it answers with the word."""
    word: bytes
    kept_port: int
    """What is kept free for the script."""


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """`MASTER_ADDR` and `MASTER_PORT`."""

    address: str
    port: int


class Meeting(Actor):
    """On the first host keeps a port free and answers; on all finds out who can call there."""

    def __init__(self) -> None:
        self._kept: socket.socket | None = None
        self._answering: socket.socket | None = None

    @endpoint
    def invite(self, is_alone: bool) -> Invitation:
        """Keeps a port free, and answers those who call."""
        self._kept = _bound()
        self._answering = _bound()
        self._answering.listen(1024)
        word = secrets.token_bytes(_WORD_LEN)
        threading.Thread(
            target=_answer, args=(self._answering, word), name="answer", daemon=True
        ).start()
        names = ["localhost", *_names()] if is_alone else [*_names(), "localhost"]
        ports = [one.getsockname()[1] for one in (self._answering, self._kept)]
        return Invitation(tuple(dict.fromkeys(names)), ports[0], word, ports[1])

    @endpoint
    def reached(self, invitation: Invitation) -> set[str]:
        """Gives the names that lead from here to who has invited."""
        found: set[str] = set()
        callers = [
            threading.Thread(target=_call, args=(name, invitation, found), daemon=True)
            for name in invitation.names
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        return found

    def __cleanup__(self, error: Exception | None) -> None:
        for one in (self._kept, self._answering):
            if one is not None:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()


def find_meeting_point(first_of_hosts: ProcMesh) -> MeetingPoint:
    """Finds where the ranks can meet; the port is kept free as long as the processes run.

    Args:
        first_of_hosts: One process on each host, that of rank 0 first.

    Raises:
        JobError: Some host cannot reach the first under any of its names.
    """
    members = first_of_hosts.spawn("meeting", Meeting)
    invitation = members.flatten("rank").slice(rank=0).invite.call_one(len(members) == 1).get()
    reached = members.reached.call(invitation).get().values()
    for name in invitation.names:
        if all(name in found for found in reached):
            return MeetingPoint(name, invitation.kept_port)
    lost = next((rank for rank, found in enumerate(reached) if not found), None)
    who = "no name leads there from all hosts" if lost is None else f"host {lost} cannot"
    raise JobError(
        f"the first host cannot be reached by the others as {', '.join(invitation.names)} ({who}): "
        "give MASTER_ADDR and MASTER_PORT in env"
    )


def _bound() -> socket.socket:
    """Binds a port that the system chooses, for both families where there are both."""
    is_dual = socket.has_dualstack_ipv6()
    bound = socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_dual:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    bound.bind(("", 0))
    return bound


def _names() -> Iterable[str]:
    """Gives the names and addresses that this host may be known under, the best first."""
    host = socket.gethostname()
    yield socket.getfqdn()
    yield host
    for family, elsewhere in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            yield probe.getsockname()[0]
    with suppress(OSError):
        for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            yield str(found[4][0])


def _answer(listener: socket.socket, word: bytes) -> None:
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return  # Closed: the run is over.
        with caller, suppress(OSError):
            caller.sendall(word)


def _call(name: str, invitation: Invitation, found: set[str]) -> None:
    with suppress(OSError):
        address = (name, invitation.port)
        with socket.create_connection(address, timeout=_CALL_LIMIT_S) as connection:
            heard = b""
            while part := connection.recv(_WORD_LEN):
                heard += part
            if heard == invitation.word:
                found.add(name)
