"""A client of the control service of one host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import grpc

from mesh_jobs._control.control_error import ControlError
from mesh_jobs._control.health_check import SERVING, health_reported
from mesh_jobs._control.methods import METHODS
from mesh_jobs._control.pem_credentials import SERVER_NAME, PemCredentials
from mesh_jobs._control.relay_client import RelayClient

__all__ = ["ControlClient"]

_CALL_LIMIT_S = 10.0
# The default grace period of the service.
_GRACE_S = 10.0
_STACKS_LIMIT_S = 60.0
_SLACK_S = 15.0
# Stacks of a hundred processes with all their threads take some megabytes.
_ANSWER_LEN_MAX = 64 << 20


class ControlClient:
    """A connection to the control service of one host.

    Args:
        address: The control address that the worker reported, such as `grpcs://10.0.0.7:40123`.
        pem: The credentials of the job's controller.
        gateway: A client whose host reaches the address, if it cannot be reached from here.
    """

    def __init__(
        self, address: str, pem: PemCredentials, gateway: ControlClient | None = None
    ) -> None:
        scheme, _, target = address.partition("://")
        if scheme != "grpcs":
            raise ControlError(
                f"{address} cannot be called, because it does not use TLS: give the `control` "
                "address that the worker has reported",
                "UNAUTHENTICATED",
            )
        self._relay_client: RelayClient | None = None
        if gateway is not None:
            self._relay_client = RelayClient(gateway._channel, target)
            target = self._relay_client.target
        options: list[tuple[str, Any]] = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", _ANSWER_LEN_MAX),
            # If the host is lost, keepalives end a call that follows its log.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 10_000),
        ]
        credentials = grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.chain)
        options.append(("grpc.ssl_target_name_override", SERVER_NAME))
        self._channel: Any = grpc.secure_channel(target, credentials, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and cancel pending calls."""
        self._channel.close()
        if self._relay_client is not None:
            self._relay_client.close()

    def list_processes(self, sample_s: float = 0.0) -> Any:
        """Return the `ListResponse`.

        Raises:
            ControlError: The call was rejected, or the service does not respond.
        """
        return self._call("List", _CALL_LIMIT_S + sample_s, sample_ms=round(sample_s * 1000))

    def stop(self, pid: int = 0, grace_s: float | None = None) -> Any:
        """Return the `StopResponse`.

        Raises:
            ControlError: The call was rejected, or the service does not respond.
        """
        given = {} if grace_s is None else {"grace_s": grace_s}
        waits_s = _GRACE_S if grace_s is None or not math.isfinite(grace_s) else grace_s
        return self._call("Stop", waits_s + _SLACK_S, pid=pid, **given)

    def stacks(self, pid: int = 0) -> Any:
        """Return the `StacksResponse`.

        Raises:
            ControlError: The call was rejected, or the service does not respond.
        """
        return self._call("Stacks", _STACKS_LIMIT_S, pid=pid)

    def logs(self, lines: int, follow: bool = False) -> Iterator[Any]:
        """Iterate over each `LogLine`; with `follow`, until the worker or this connection ends.

        Raises:
            ControlError: The call was rejected, or the worker is not reachable or was lost during
                the call.
        """
        method = METHODS["Logs"]
        call = self._channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            yield from call(
                method.request(lines=lines, follow=follow),
                timeout=None if follow else _CALL_LIMIT_S,
            )
        except grpc.RpcError as error:
            raise _control_error(error) from None

    def is_healthy(self) -> bool:
        """Return whether the worker can serve a program, or serves one already.

        Raises:
            ControlError: The service does not respond.
        """
        try:
            return health_reported(self._channel, _CALL_LIMIT_S) == SERVING
        except grpc.RpcError as error:
            raise _control_error(error) from None

    def _call(self, name: str, limit_s: float, **fields: Any) -> Any:
        method = METHODS[name]
        call = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            return call(method.request(**fields), timeout=limit_s)
        except grpc.RpcError as error:
            raise _control_error(error) from None


def _control_error(error: Any) -> ControlError:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        return ControlError(
            f"the control service does not respond: {details}: see mesh status and mesh doctor",
            code.name,
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ControlError(
            f"the control service did not respond in time: {details}: try again", code.name
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ControlError(
            f"its worker does not support this call: {details}: install the same version of "
            "torchmesh-jobs there",
            code.name,
        )
    return ControlError(details, code.name)
