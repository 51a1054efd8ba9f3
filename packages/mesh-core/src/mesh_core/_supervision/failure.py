"""Serialized form of failures: how a process reports the end of an actor or a process.

A failure has an id, which is the same in all processes that are notified of it. The id ensures that
each owner is notified once, and that a failure that a waiting caller has received is not reported
to any owner.
"""

from __future__ import annotations

import struct
from _pickle import dumps, loads

from mesh_core._errors import (
    ActorError,
    ActorFailed,
    CallCancelled,
    DeadlineExceeded,
    HostDied,
    MeshError,
    MeshStopped,
    NoReply,
    ProcDied,
    SupervisionError,
)
from mesh_core._runtime.runtime import is_running, runtime
from mesh_core._serialization.remote_error import decode_exception
from mesh_core._serialization.wire import (
    ACTOR_FAILED,
    CANCELLED,
    DEADLINE,
    HOST_DIED,
    NO_REPLY,
    PROC_DIED,
    RAISED,
    STOPPED,
    proc_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._core import Message
    from mesh_core._runtime.runtime import Runtime

__all__ = [
    "FailureDetail",
    "as_itself",
    "error_in",
    "error_of",
    "failure_error",
    "host_exit_report",
    "observed_error",
]

_CLASSES = {
    PROC_DIED: ProcDied,
    ACTOR_FAILED: ActorFailed,
    STOPPED: MeshStopped,
    HOST_DIED: HostDied,
}

_NOT_THERE = "its process has no such actor: it was stopped, or the process is a new one"


class FailureDetail:
    """Serializable description of a failure.

    Attributes:
        failure_id: The id of the failure in all processes; 0 for a normal stop.
        code: The fault code that callers get.
        fields: Keyword arguments of the resulting exception.
        cause: The original exception, encoded.
        owner_proc: The process whose supervisor handles the failure.
    """

    __slots__ = ("cause", "code", "failure_id", "fields", "owner_proc")

    def __init__(
        self,
        failure_id: int,
        code: int,
        fields: dict[str, Any],
        cause: bytes | None = None,
        owner_proc: int = 0,
    ) -> None:
        self.failure_id: int = failure_id
        self.code: int = code
        self.fields: dict[str, Any] = fields
        self.cause: bytes | None = cause
        self.owner_proc: int = owner_proc

    def encode(self) -> bytes:
        """Encode the failure for `FailureDetail.decode`."""
        return dumps((self.failure_id, self.code, self.fields, self.cause, self.owner_proc), 5)

    @staticmethod
    def decode(body: bytes) -> FailureDetail:
        """Decode the result of `encode`; an empty body gives a detail without any information."""
        return FailureDetail(*loads(body)) if body else FailureDetail(0, STOPPED, {})


def failure_error(detail: FailureDetail, **where: Any) -> SupervisionError:
    """Create the exception that a caller or an owner gets."""
    known = {k: v for k, v in detail.fields.items() if v is not None}
    if detail.code in (PROC_DIED, STOPPED):
        # The fields describe the process. The location uses the mesh name of the requesting side.
        fields = {**known, **{k: v for k, v in where.items() if v is not None}}
    else:
        fields = {**where, **known}
    if detail.code == PROC_DIED and is_running():
        fields["actors"] = runtime().ownership.actors_lost(detail)
    error: SupervisionError = _CLASSES[detail.code](**fields)
    if detail.cause is not None:
        error.__cause__ = as_itself(decode_exception(detail.cause))
    error.__dict__["_failure_id"] = detail.failure_id
    return error


def host_exit_report(current: Runtime, host_name: str, why: str) -> bytes:
    """Return the encoded failure for callers that wait for something on a lost host."""
    fields = {"host": host_name, "proc": None, "reason": why}
    return FailureDetail(current.engine.new_port(), HOST_DIED, fields, None, current.me).encode()


def as_itself(error: BaseException) -> BaseException:
    """Unwrap an `ActorError` whose exception was raised by Mesh itself rather than by an actor."""
    if isinstance(error, ActorError) and isinstance(error.exception, MeshError):
        plain = error.exception
        if plain.__cause__ is None and error.__cause__ is not None:
            plain.__cause__ = as_itself(error.__cause__)
        return plain
    return error


def error_of(
    message: Message, endpoint: Endpoint[..., Any], *, is_given: bool = True
) -> BaseException:
    """Create the exception for a reply without a value.

    Args:
        message: The reply.
        endpoint: The endpoint that was called.
        is_given: Whether a caller receives the exception, so that the failure does not have to be
            reported to the owner.
    """
    return error_in(message.body, message.code, message, endpoint, is_given=is_given)


def error_in(
    body: bytes,
    code: int,
    message: Message,
    endpoint: Endpoint[..., Any],
    *,
    is_given: bool = True,
) -> BaseException:
    """Like `error_of`, but take the code and the body of the error from a reply."""
    mesh = endpoint._mesh
    rank, point = mesh._place(message.rank)
    place: dict[str, Any] = {
        "mesh_name": mesh._name,
        "actor": mesh._class_name,
        "rank": rank,
        "point": point,
        "endpoint": endpoint.name,
    }
    if code == RAISED:
        return decode_exception(body, **place, proc=proc_name(message.from_proc))
    if code == DEADLINE:
        # The body contains the timeout, which was recorded when the call was made.
        (timeout,) = struct.unpack("<d", body)
        return DeadlineExceeded(endpoint.name, timeout, mesh._name)
    if code == CANCELLED:
        return CallCancelled(f"call of {endpoint.name!r} was cancelled")
    if code == NO_REPLY:
        return NoReply(
            f"endpoint {endpoint.name!r} returned and dropped its port without replying: "
            "send a value or an exception through it"
        )
    lost_host = runtime().withdrawn_hosts.get(message.from_proc >> 32)
    if lost_host is not None and FailureDetail.decode(body).code == STOPPED:
        # The actor has stopped because the worker of its host leaves: it is lost with the host.
        body = lost_host
    proc = proc_name(message.from_proc)
    return observed_error(body, code, is_given=is_given, **place, proc=proc)


def observed_error(
    body: bytes, code: int, *, is_given: bool = True, **where: Any
) -> SupervisionError:
    """Create the exception for a waiting caller, and mark the failure as observed at its owner.

    Args:
        body: The encoded failure; may be empty.
        code: The fault code of the failure.
        is_given: Whether a caller receives the exception, so that the failure does not have to be
            reported to the owner.
        **where: The location of the failure, as far as it is known here.
    """
    detail = FailureDetail.decode(body)
    if not body:
        detail.code = code
        detail.fields = {"reason": _NOT_THERE} if code == STOPPED else {}
    error = failure_error(detail, **where)
    if detail.failure_id and is_given:
        runtime().observed(detail.failure_id, detail.owner_proc)
    return error
