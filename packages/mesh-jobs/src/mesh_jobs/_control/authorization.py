"""Authorization of calls: only controllers of the job may call the control service."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import grpc

__all__ = ["ControllerInterceptor"]

_URI = re.compile(r"mesh://([0-9a-f]{32})/([a-z]+)/[A-Za-z0-9._-]{1,64}\?generation=[0-9]+")
_NAMES = ("peer_uri", "x509_subject_alternative_name")


class ControllerInterceptor(grpc.ServerInterceptor):
    """Rejects calls whose client certificate does not name a controller of the job.

    TLS has already verified that an authority of the job signed the certificate.

    Args:
        job: The id of the job.
    """

    def __init__(self, job: str) -> None:
        self._job = job

    def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        """Wrap a method of any kind, unary or streaming, in the authorization check."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        kinds = {
            (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
            (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
            (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
            (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
        }
        name, make = kinds[handler.request_streaming, handler.response_streaming]
        return make(
            self._authorized(getattr(handler, name)),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _authorized(self, method: Callable[..., Any]) -> Callable[..., Any]:
        # The context is the last argument, also of methods that answer through a callback.
        @functools.wraps(method)
        def checked(*args: Any) -> Any:
            why = self._reject_reason(args[-1])
            if why is not None:
                args[-1].abort(grpc.StatusCode.PERMISSION_DENIED, why)
            return method(*args)

        return checked

    def _reject_reason(self, context: Any) -> str | None:
        proven = context.auth_context()
        names = [value.decode(errors="replace") for key in _NAMES for value in proven.get(key, ())]
        for name in names:
            found = _URI.fullmatch(name)
            if found is None:
                continue
            if found[1] != self._job:
                return "your certificate belongs to another job: use that of this job's controller"
            if found[2] != "controller":
                return f"your certificate is for a {found[2]} of the job: only controllers may call"
            return None
        return "your certificate names no member of a job: use that of the job's controller"
