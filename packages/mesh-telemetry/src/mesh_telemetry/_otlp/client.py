"""Posts requests of OTLP over HTTP, and says what has become of them."""

from __future__ import annotations

import gzip
import http.client
import urllib.error
import urllib.request
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mesh_telemetry._otlp.options import OtlpConfig

__all__ = ["Fate", "OtlpClient", "Posted"]

_GZIP_LEVEL = 1
_ANSWER_LEN_MAX = 1 << 20
# What OTLP says is to be tried again.
_AGAIN = frozenset({429, 502, 503, 504})
_PAUSE_S_MAX = 60.0


class Fate(Enum):
    """What has become of a request."""

    TAKEN = auto()
    LATER = auto()
    REFUSED = auto()


class Posted(NamedTuple):
    """What a collector has said.

    Attributes:
        fate: Whether it has taken the request, may take it later, or never will.
        cause: Why not.
        body: What it has answered.
        pause_s: For how long it wants to be left alone, if it says so.
    """

    fate: Fate
    cause: str = ""
    body: bytes = b""
    pause_s: float = 0.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follows nobody: what is posted may be private."""


class OtlpClient:
    """Posts to one collector.

    Args:
        config: Where it is.
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

    def post(self, body: bytes, timeout_s: float) -> Posted:
        """Posts a request, packed.

        Args:
            body: The request.
            timeout_s: For how long the collector may say nothing, in seconds.
        """
        packed = gzip.compress(body, _GZIP_LEVEL)
        request = urllib.request.Request(self._url, packed, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=timeout_s) as reply:
                return Posted(Fate.TAKEN, body=reply.read(_ANSWER_LEN_MAX))
        except urllib.error.HTTPError as error:
            with error:
                fate = Fate.LATER if error.code in _AGAIN else Fate.REFUSED
                return Posted(fate, f"it says {error.code}", pause_s=_pause_s(error))
        except (OSError, http.client.HTTPException) as error:
            return Posted(Fate.LATER, f"{type(error).__name__}: {error}")


def _pause_s(error: urllib.error.HTTPError) -> float:
    said = error.headers.get("Retry-After", "")
    return min(float(said), _PAUSE_S_MAX) if said.isdecimal() else 0.0
