"""The address of the dashboard for a browser."""

from __future__ import annotations

from urllib.parse import quote

__all__ = ["dashboard_url"]


def dashboard_url(url: str, token: str) -> str:
    """Return the address for a browser, which does not send the fragment with the token.

    Example:
        >>> dashboard_url("http://127.0.0.1:80", "a b")
        'http://127.0.0.1:80/#token=a%20b'
    """
    return f"{url}/#token={quote(token, safe='')}"
