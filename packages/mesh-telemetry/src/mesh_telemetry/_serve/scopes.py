"""Scopes: the permissions of a token, and the scope that each route requires."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from enum import Enum
from typing import Self

from mesh_telemetry._errors import TelemetryError

__all__ = ["ACT_TABLES", "ROUTE_SCOPES", "Scope", "Tokens"]


class Scope(Enum):
    """The permissions of a request."""

    OPEN = "open"
    """No access to the program: no token is required."""

    READ = "read"
    """Read recorded data: dashboard, SQL, logs, metrics, traces, messages in saved cases."""

    ACT = "act"
    """Change the program, run code in it, or read local variables; includes `READ`."""


#: The scope of each route. A route that is not in this table cannot be served.
ROUTE_SCOPES: Mapping[tuple[str, str], Scope] = {
    ("GET", "/"): Scope.OPEN,
    ("GET", "/dash/*"): Scope.OPEN,
    ("GET", "/openapi.json"): Scope.READ,
    ("POST", "/query"): Scope.READ,
    ("GET", "/topics/*"): Scope.READ,
    ("GET", "/live/*"): Scope.READ,
    ("GET", "/profile"): Scope.READ,
    ("GET", "/why"): Scope.READ,
    ("GET", "/metrics"): Scope.READ,
    # These routes stop actors, pause processes and read their memory, or run code.
    ("POST", "/stop"): Scope.ACT,
    ("POST", "/pyspy/dump"): Scope.ACT,
    ("POST", "/pyspy/flame"): Scope.ACT,
    ("POST", "/memray/heap"): Scope.ACT,
    ("POST", "/debug/attach/*"): Scope.ACT,
    ("POST", "/debug/run"): Scope.ACT,
    ("POST", "/debug/continue"): Scope.ACT,
    ("POST", "/debug/on-failure"): Scope.ACT,
}

#: Tables with values of local variables, which SQL of scope `READ` must not name.
ACT_TABLES: frozenset[str] = frozenset({"pyspy_local_variables"})

_SCHEME = "Bearer "


class Tokens:
    """The two tokens of a server.

    Args:
        read: The token that permits reading.
        act: The token that permits everything.

    Raises:
        TelemetryError: A token is empty, or both are equal.

    Example:
        >>> Tokens("r", "a").scope_of("Bearer r")
        <Scope.READ: 'read'>
    """

    def __init__(self, read: str, act: str) -> None:
        if not read or not act:
            raise TelemetryError("an empty token would admit everyone: pass a random one")
        if read == act:
            raise TelemetryError("token and act_token are equal: pass different ones")
        self.read: str = read
        self.act: str = act

    @classmethod
    def random(cls, read: str | None = None, act: str | None = None) -> Self:
        """Create tokens; those omitted are random.

        Args:
            read: The read token, if it is given.
            act: The act token, if it is given.

        Raises:
            TelemetryError: A token is empty, or both are equal.
        """
        new_read, new_act = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        return cls(new_read if read is None else read, new_act if act is None else act)

    def scope_of(self, authorization: str) -> Scope:
        """Return the scope that the value of an `Authorization` header permits.

        The comparison takes constant time, so it does not reveal where a wrong token differs.
        """
        sent = authorization.encode()
        is_read = hmac.compare_digest(sent, (_SCHEME + self.read).encode())
        is_act = hmac.compare_digest(sent, (_SCHEME + self.act).encode())
        return Scope.ACT if is_act else Scope.READ if is_read else Scope.OPEN
