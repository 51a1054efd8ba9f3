"""The static files of the dashboard, which contain no data of the program."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from importlib.resources import files

from mesh_telemetry._serve.routes import Reply, Request, Route, known_route

__all__ = ["file_routes"]

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Pages load and query nothing from other origins, and cannot be embedded in other pages.
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " object-src 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Browsers cache the files, and revalidate them each time.
    "Cache-Control": "no-cache",
}


def file_routes() -> list[Route]:
    """Return a route for each file, and `GET /` for the main page."""
    folder = files("mesh_telemetry._dash") / "pages"
    routes = []
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is None:
            continue
        body = file.read_bytes()
        mark = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        work = partial(_file_reply, kind, body, _HEADERS | {"ETag": mark})
        routes.append(known_route("GET", f"/dash/{file.name}", work, "/dash/*"))
        if file.name == "index.html":
            routes.append(known_route("GET", "/", work))
    return routes


def _file_reply(kind: str, body: bytes, headers: Mapping[str, str], request: Request) -> Reply:
    known = {mark.strip() for mark in request.headers.get("If-None-Match", "").split(",")}
    if headers["ETag"] in known:
        return Reply(kind, b"", headers, 304)
    return Reply(kind, body, headers)
