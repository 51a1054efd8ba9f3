"""Access control of HTTP requests: checks the `Host` header, the token, and browser requests."""

from __future__ import annotations

from typing import Protocol, overload
from urllib.parse import urlsplit

from mesh_telemetry._serve.routes import RequestError, Route
from mesh_telemetry._serve.scopes import ACT_TABLES, Scope, Tokens

__all__ = ["Headers", "check_access", "check_sql"]

#: The permitted values of `Host`. The port is not compared, because ssh may forward another one.
_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_ACT_NEEDED = "needs the act token, and the token that was sent permits only reading"
_ROUTE_HINT = "use Serving.act_token, or run the command mesh as the user of the program"
_TABLE_HINT = "use Serving.act_token over HTTP, or mesh query --act"


class Headers(Protocol):
    """Headers of a request, with case-insensitive names."""

    def __contains__(self, name: str, /) -> bool: ...

    @overload
    def get(self, name: str, /) -> str | None: ...

    @overload
    def get(self, name: str, otherwise: str, /) -> str: ...


def check_access(route: Route | None, headers: Headers, tokens: Tokens) -> Scope:
    """Return the scope of a request if it may use a route.

    Args:
        route: The route; None for a path that does not exist.
        headers: The headers of the request.
        tokens: The tokens of the server.

    Raises:
        RequestError: The request may not use the route.
    """
    _check_host(headers)
    granted = tokens.scope_of(headers.get("Authorization", ""))
    if granted is Scope.ACT and _is_from_browser(headers):
        # Browser extensions can read anything that a page holds, and browsers may store it.
        text = "a browser must not send the act token: use the read token in browsers"
        raise RequestError(403, "browser", text)
    required = Scope.READ if route is None else route.scope
    if required is Scope.OPEN:
        return granted
    if granted is Scope.OPEN:
        text = "missing or invalid token: send Authorization: Bearer <token>"
        raise RequestError(401, "unauthorized", text)
    if required is Scope.ACT and granted is not Scope.ACT:
        assert route is not None, "only a route requires the scope act"
        raise RequestError(
            403, "scope", f"{route.method} {route.path} {_ACT_NEEDED}: {_ROUTE_HINT}"
        )
    return granted


def check_sql(sql: str, scope: Scope) -> None:
    """Reject SQL that names a table with local variables, unless the scope is `ACT`.

    A table can be read only by a query whose text contains its name.

    Raises:
        RequestError: The SQL requires the scope `ACT`.
    """
    if scope is Scope.ACT:
        return
    words = sql.lower()
    for table in sorted(ACT_TABLES):
        if table in words:
            raise RequestError(403, "scope", f"the table {table} {_ACT_NEEDED}: {_TABLE_HINT}")


def _check_host(headers: Headers) -> None:
    """Reject requests of pages whose host name was resolved to this machine (DNS rebinding)."""
    host = headers.get("Host", "")
    if _name_of(f"//{host}") not in _HOSTS:
        text = f"{host!r} is not a name of this server: use 127.0.0.1 or localhost"
        raise RequestError(421, "wrong_host", text)
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise RequestError(
            403, "wrong_origin", f"requests from pages of {origin!r} are not permitted"
        )


def _name_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _is_from_browser(headers: Headers) -> bool:
    return "Origin" in headers or "Sec-Fetch-Site" in headers
