"""Posts OTLP requests over HTTP, and classifies the responses."""

from __future__ import annotations

import gzip
import http.client
import urllib.error
import urllib.request
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mesh_telemetry._otlp.options import OtlpConfig

__all__ = ["OtlpClient", "PostOutcome", "PostResponse"]

_GZIP_LEVEL = 1
_REPLY_LEN_MAX = 1 << 20
# The status codes after which OTLP requires a retry.
_RETRY_STATUSES = frozenset({429, 502, 503, 504})
_PAUSE_S_MAX = 60.0


class PostOutcome(Enum):
    """The outcome of a request: accepted, to be retried, or rejected."""

    ACCEPTED = auto()
    RETRY = auto()
    REJECTED = auto()


class PostResponse(NamedTuple):
    """The response of a collector.

    Attributes:
        outcome: Whether the collector accepted the request, may accept it later, or rejected it.
        cause: The cause if it was not accepted.
        body: The body of the response.
        pause_s: The time in seconds after which to retry, if the collector has set it.
    """

    outcome: PostOutcome
    cause: str = ""
    body: bytes = b""
    pause_s: float = 0.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Reject redirects, because requests may contain private data."""


class OtlpClient:
    """Posts to one collector.

    Args:
        config: The configuration of the collector.
        signal: `metrics`, `logs` or `traces`.
    """

    def __init__(self, config: OtlpConfig, signal: str) -> None:
        self._url = f"{config.endpoint.rstrip('/')}/v1/{signal}"
        self._headers = dict(config.headers) | {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            "User-Agent": "mesh-telemetry",
        }
        self._opener = urllib.request.build_opener(_NoRedirects)

    def post(self, body: bytes, timeout_s: float) -> PostResponse:
        """Compress and post an encoded request.

        Args:
            body: The encoded request.
            timeout_s: The maximum time without data from the collector, in seconds.
        """
        packed = gzip.compress(body, _GZIP_LEVEL)
        request = urllib.request.Request(self._url, packed, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=timeout_s) as reply:
                return PostResponse(PostOutcome.ACCEPTED, body=reply.read(_REPLY_LEN_MAX))
        except urllib.error.HTTPError as error:
            with error:
                outcome = (
                    PostOutcome.RETRY if error.code in _RETRY_STATUSES else PostOutcome.REJECTED
                )
                return PostResponse(outcome, f"status {error.code}", pause_s=_pause_s(error))
        except (OSError, http.client.HTTPException) as error:
            return PostResponse(PostOutcome.RETRY, f"{type(error).__name__}: {error}")


def _pause_s(error: urllib.error.HTTPError) -> float:
    retry_after = error.headers.get("Retry-After", "")
    return min(float(retry_after), _PAUSE_S_MAX) if retry_after.isdecimal() else 0.0
