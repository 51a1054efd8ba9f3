"""Who may call: the controllers of the job, and without credentials the user of the worker."""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import grpc

__all__ = ["ControllersOnly", "OwnUserOnly"]

_URI = re.compile(r"mesh://([0-9a-f]{32})/([a-z]+)/[A-Za-z0-9._-]{1,64}\?generation=[0-9]+")
_NAMES = ("peer_uri", "x509_subject_alternative_name")
_ROOT = 0


class _Guard(grpc.ServerInterceptor, ABC):
    """Asks of each call whether it may be, before the method does anything."""

    def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        """Puts the question in front of a method, of whichever kind it is."""
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
            self._asked_first(getattr(handler, name)),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _asked_first(self, method: Callable[..., Any]) -> Callable[..., Any]:
        # The context comes last, also to methods that answer by a callback.
        @functools.wraps(method)
        def asked(*words: Any) -> Any:
            why = self._refusal(words[-1])
            if why is not None:
                words[-1].abort(grpc.StatusCode.PERMISSION_DENIED, why)
            return method(*words)

        return asked

    @abstractmethod
    def _refusal(self, context: Any) -> str | None:
        """Says why a call may not be; None when it may."""


class ControllersOnly(_Guard):
    """Refuses all calls but those with the certificate of a controller of one job.

    That an authority of the job has signed it was seen to before, by TLS.
    """

    def __init__(self, job: str) -> None:
        self._job = job

    def _refusal(self, context: Any) -> str | None:
        proven = context.auth_context()
        names = [value.decode(errors="replace") for key in _NAMES for value in proven.get(key, ())]
        for name in names:
            found = _URI.fullmatch(name)
            if found is None:
                continue
            if found[1] != self._job:
                return "your certificate is of another job: use that of this job's controller"
            if found[2] != "controller":
                return f"you are a {found[2]} of the job: only its controllers may call"
            return None
        return "your certificate names nobody of a job: use that of the job's controller"


class OwnUserOnly(_Guard):
    """Refuses all calls on loopback but those of the worker's own user, and of root."""

    def _refusal(self, context: Any) -> str | None:
        user = _user_of(context.peer())
        if user in (os.getuid(), _ROOT):
            return None
        return "you are another user of this machine: give the worker credentials, and use them"


def _user_of(peer: str) -> int | None:
    """Asks the kernel whose socket is at the other end, such as `ipv4:127.0.0.1:40123`."""
    name, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None
    if address.version == 6:
        return _user_in("/proc/net/tcp6", address.packed, int(port))
    # A socket of the newer kind is also used to call addresses of the older one.
    found = _user_in("/proc/net/tcp", address.packed, int(port))
    mapped = bytes(10) + b"\xff\xff" + address.packed
    return _user_in("/proc/net/tcp6", mapped, int(port)) if found is None else found


def _user_in(table: str, address: bytes, port: int) -> int | None:
    # As the kernel writes it: words of 32 bits, in the order that this machine has them in memory.
    words = struct.unpack(f"={len(address) // 4}I", address)
    wanted = "".join(f"{word:08X}" for word in words) + f":{port:04X}"
    with suppress(OSError), open(table, encoding="ascii") as lines:
        for line in lines:
            fields = line.split()
            if fields[1] == wanted:
                return int(fields[7])
    return None
