"""Requests to the routes of a program that do something, with its act token."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from recorded_actors import LIMIT_S


def post(serving: Any, path: str, **said: object) -> tuple[int, str, bytes]:
    """Send a request; return the status, the type of the content, and the content.

    Args:
        serving: The result of `Telemetry.serve`.
        path: The path of the route.
        said: The fields of the request.
    """
    asked = urllib.request.Request(
        serving.url + path,
        json.dumps(said).encode(),
        {"Authorization": f"Bearer {serving.act_token}"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=LIMIT_S) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()
