"""Failures as they travel: what a process says of its own end or of an actor's.

A failure has an id, the same for all who hear of it, so that each owner is told once and a waiting
caller who has seen it takes it off everyone's list.
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
from mesh_core._program.runtime import is_running, runtime
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

__all__ = [
    "FailureDetail",
    "as_itself",
    "error_in",
    "error_of",
    "failure_error",
    "observed_error",
]

_CLASSES = {
    PROC_DIED: ProcDied,
    ACTOR_FAILED: ActorFailed,
    STOPPED: MeshStopped,
    HOST_DIED: HostDied,
}

_NOT_THERE = "there is no such actor in its process: it was stopped, or the process is a new one"


class FailureDetail:
    """What is known of a failure, in a form that travels.

    Attributes:
        failure_id: The same for all who hear of it; 0 for an orderly stop.
        code: The fault code that callers get.
        fields: Keyword arguments of the error that it becomes.
        cause: The exception behind it, encoded.
        owner_proc: The process whose supervisor deals with it.
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
        """Gives the bytes that `FailureDetail.decode` reads."""
        return dumps((self.failure_id, self.code, self.fields, self.cause, self.owner_proc), 5)

    @staticmethod
    def decode(body: bytes) -> FailureDetail:
        """Reads what `encode` gave; nothing known when it is empty."""
        return FailureDetail(*loads(body)) if body else FailureDetail(0, STOPPED, {})


def failure_error(detail: FailureDetail, **where: Any) -> SupervisionError:
    """Makes the error that a caller or an owner is given."""
    known = {k: v for k, v in detail.fields.items() if v is not None}
    if detail.code in (PROC_DIED, STOPPED):
        # Its fields tell of the process; whoever asks calls the place by the name of their mesh.
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


def as_itself(error: BaseException) -> BaseException:
    """Gives an error that Mesh itself has raised elsewhere, and not an actor, as what it is."""
    if isinstance(error, ActorError) and isinstance(error.exception, MeshError):
        plain = error.exception
        if plain.__cause__ is None and error.__cause__ is not None:
            plain.__cause__ = as_itself(error.__cause__)
        return plain
    return error


def error_of(
    message: Message, endpoint: Endpoint[..., Any], *, is_given: bool = True
) -> BaseException:
    """Makes the exception that an answer without a value stands for.

    Args:
        message: The answer.
        endpoint: What was called.
        is_given: A caller is given it: its failure need not go to the owner any more.
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
    """As `error_of`, for an answer that has the code and the body of the error in it."""
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
        # Where the call was made it was noted how long it might take.
        (timeout,) = struct.unpack("<d", body)
        return DeadlineExceeded(endpoint.name, timeout, mesh._name)
    if code == CANCELLED:
        return CallCancelled(f"call of {endpoint.name!r} was cancelled")
    if code == NO_REPLY:
        return NoReply(
            f"endpoint {endpoint.name!r} ended and let go of its port without answering: "
            "send a value or an exception on it"
        )
    proc = proc_name(message.from_proc)
    return observed_error(body, code, is_given=is_given, **place, proc=proc)


def observed_error(
    body: bytes, code: int, *, is_given: bool = True, **where: Any
) -> SupervisionError:
    """Makes the error for someone who waits, and takes the failure off the list of its owner.

    Args:
        body: What is known of the failure; may be empty.
        code: What kind of failure it is.
        is_given: A caller is given it: its failure need not go to the owner any more.
        **where: Who has failed, as far as is known here.
    """
    detail = FailureDetail.decode(body)
    if not body:
        detail.code = code
        detail.fields = {"reason": _NOT_THERE} if code == STOPPED else {}
    error = failure_error(detail, **where)
    if detail.failure_id and is_given:
        runtime().observed(detail.failure_id, detail.owner_proc)
    return error
