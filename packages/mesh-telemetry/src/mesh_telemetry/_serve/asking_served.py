"""How commands reach a program of this user that serves telemetry."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._serve.served import Served

__all__ = ["opened", "refusal"]


@contextmanager
def opened(
    served: Served, path: str, body: bytes | None, timeout_s: float
) -> Iterator[http.client.HTTPResponse]:
    """Asks a program, and gives what it answers, to be read.

    Args:
        served: Which.
        path: What is asked, with its arguments.
        body: What is sent as JSON; nothing if None.
        timeout_s: How long it may say nothing, in seconds.

    Raises:
        QueryError: It refuses.
        TelemetryError: It does not answer, or not to the end.
    """
    request = urllib.request.Request(
        f"{served.url}{path}",
        body,
        {"Authorization": f"Bearer {served.token}", "Content-Type": "application/json"},
    )
    # Loopback: what a proxy is set for lies elsewhere.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            yield reply
    except urllib.error.HTTPError as error:
        raise QueryError(refusal(error.read())) from error
    except (OSError, http.client.HTTPException) as error:
        raise TelemetryError(f"program {served.pid} does not answer: {error}") from error


def refusal(body: bytes) -> str:
    """Gives what a program has said of why it refuses."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return "the program does not say what is wrong"
