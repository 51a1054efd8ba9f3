"""Exceptions that Mesh raises, a small tree with `MeshError` as its root.

Every exception carries its details as typed fields, formats as one short paragraph, and can be
pickled. This module imports nothing heavy, because errors must be cheap to create and to import.
"""

from __future__ import annotations

from _pickle import dumps

from mesh_core._location import (
    Where,
    position_of,
    position_text,
    signal_hint,
    signal_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Failure = tuple["Mapping[str, int] | int | None", BaseException]

__all__ = [
    "ActorError",
    "ActorFailed",
    "CallCancelled",
    "ChannelClosed",
    "ConfigError",
    "DeadlineExceeded",
    "DeadlockError",
    "DrainFailed",
    "ForeignHandle",
    "HostDied",
    "MailboxFull",
    "MeshError",
    "MeshStopped",
    "NoReply",
    "ProcDied",
    "SpawnError",
    "SupervisionError",
    "Unpicklable",
    "Where",
    "join_failures",
]

_FAILURES_SHOWN_MAX = 8
_LOG_LINE_LEN_MAX = 400


def _restore(cls: type[MeshError], args: tuple[Any, ...]) -> MeshError:
    """Recreate an error without running its `__init__`, which may require other arguments."""
    error = cls.__new__(cls, *args)
    error.args = args
    return error


def _portable_cause(cause: BaseException) -> BaseException:
    """Return the cause if it can be pickled, else a `MeshError` with its type name and text."""
    try:
        dumps(cause, 5)
    except Exception:
        return MeshError(f"{type(cause).__qualname__}: {safe_str(cause)}")
    return cause


def safe_str(value: object) -> str:
    """Return `str(value)`, or a placeholder if `str()` raises."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__qualname__} whose str() raised {type(error).__qualname__}>"


class _Shadowable:
    """Attribute of Mesh that yields to an attribute of the same name in a user's exception.

    The descriptor defines no `__set__`, so an entry in the `__dict__` of the instance takes
    precedence.
    """

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        return self if instance is None else self._read(instance)


class MeshError(Exception):
    """Base class of all exceptions that Mesh raises.

    A remote exception is raised as an `ActorError` that is also an instance of the exception's own
    type.
    """

    if TYPE_CHECKING:

        @property
        def failures(self) -> tuple[Failure, ...]:
            """The failures of all ranks of the call that raised this error, including itself."""
            raise NotImplementedError

    else:
        failures = _Shadowable(
            lambda self: self.__dict__.get("_mesh_failures", ((position_of(self), self),))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        if self.__cause__ is not None:
            state["__cause__"] = _portable_cause(self.__cause__)
        return _restore, (type(self), self.args), state

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        fields = dict(state or {})
        cause = fields.pop("__cause__", None)
        self.__dict__.update(fields)
        if cause is not None:
            self.__cause__ = cause


class ActorError(MeshError):
    """Exception that an actor raised while it served a call.

    Mesh raises an instance of a class that derives from `ActorError` *and* from the type of the
    original exception, so that both `except ValueError` and `except ActorError` catch it. If the
    user's exception has an attribute with the same name as an attribute of Mesh, the user's
    attribute takes precedence. This does not apply to `exception`, `exception_formatted` and
    `where`, which always belong to Mesh.
    """

    def __init__(
        self,
        exception: BaseException,
        message: str | None = None,
        *,
        exception_formatted: str = "",
        where: Where | None = None,
    ) -> None:
        self.args: tuple[Any, ...] = exception.args
        self._describe(exception, message, exception_formatted, where)

    def _describe(
        self,
        exception: BaseException,
        message: str | None,
        exception_formatted: str,
        where: Where | None,
    ) -> None:
        # Write to `__dict__` directly, because the class of the user may refuse attribute
        # assignment.
        self.__dict__["_mesh_exception"] = exception
        self.__dict__["_mesh_message"] = safe_str(exception) if message is None else message
        self.__dict__["_mesh_formatted"] = exception_formatted
        self.__dict__["_mesh_where"] = where or Where()

    @property
    def exception(self) -> BaseException:
        """The original exception, as the actor raised it."""
        return self.__dict__["_mesh_exception"]  # type: ignore[no-any-return]

    @property
    def exception_formatted(self) -> str:
        """The traceback of the exception in the actor, as text."""
        return self.__dict__["_mesh_formatted"]  # type: ignore[no-any-return]

    @property
    def where(self) -> Where:
        """The location of the actor: actor, rank, point, host, proc, pid and endpoint."""
        return self.__dict__["_mesh_where"]  # type: ignore[no-any-return]

    if TYPE_CHECKING:
        message: str
        mesh_name: str | None
        actor: str | None
        rank: int | None
        point: Mapping[str, int] | None
        host: str | None
        proc: str | None
        pid: int | None
        endpoint: str | None
    else:
        message = _Shadowable(lambda self: self.__dict__["_mesh_message"])
        mesh_name = _Shadowable(lambda self: self.where.mesh_name)
        actor = _Shadowable(lambda self: self.where.actor)
        rank = _Shadowable(lambda self: self.where.rank)
        point = _Shadowable(lambda self: self.where.point)
        host = _Shadowable(lambda self: self.where.host)
        proc = _Shadowable(lambda self: self.where.proc)
        pid = _Shadowable(lambda self: self.where.pid)
        endpoint = _Shadowable(lambda self: self.where.endpoint)

    # The class of the original exception may compare by fields, be frozen, or override attribute
    # access. Raising and handling the error requires the default behavior of these methods.
    if not TYPE_CHECKING:
        __eq__ = object.__eq__
        __hash__ = object.__hash__
        __getattribute__ = BaseException.__getattribute__
        __setattr__ = BaseException.__setattr__

    def __str__(self) -> str:
        where = self.where
        endpoint = f", in endpoint {where.endpoint!r}" if where.endpoint else ""
        place = where.place()
        lines = [
            self.__dict__["_mesh_message"] or type(self.exception).__qualname__,
            f"  raised by {where.subject()}{endpoint}{f', {place}' if place else ''}",
        ]
        if self.exception_formatted:
            lines[-1] += ":"
            lines.extend(f"    {line}" for line in self.exception_formatted.splitlines())
        lines.extend(_other_failures(self))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({self.__dict__['_mesh_message']!r})"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Do not run the `__init_subclass__` of the user's exception for a class that Mesh creates
        # to raise it: it may require arguments or keep a registry of subclasses.
        if "_mesh_is_raised_as" not in cls.__dict__:
            super().__init_subclass__(**kwargs)


class SupervisionError(MeshError, RuntimeError):
    """The target of a call, or an owned mesh, failed or stopped and cannot reply.

    Attributes:
        mesh_name: The name of the mesh.
        actor: The class or the name of the actor.
        rank: The rank in the mesh, in row-major order.
        point: The coordinates in the mesh, by dimension.
        host: The name of the host.
        proc: The name of the process.
        pid: The process id on that host.
        exit_code: The exit status of the process, if it exited.
        signal: The number of the signal that terminated the process, if any.
        log_tail: The last lines that the process printed.
        endpoint: The endpoint that was called.
        reason: A description of the failure, if no other field contains it.
    """

    _what = "failed"
    _to_do = "catch SupervisionError around the call, or define __supervise__ in the owner"

    def __init__(
        self,
        reason: str | None = None,
        *,
        mesh_name: str | None = None,
        actor: str | None = None,
        rank: int | None = None,
        point: Mapping[str, int] | None = None,
        host: str | None = None,
        proc: str | None = None,
        pid: int | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        log_tail: Sequence[str] = (),
        endpoint: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(*(() if reason is None else (reason,)))
        self.reason = reason
        self.mesh_name = mesh_name
        self.actor = actor
        self.rank = rank
        self.point = point
        self.host = host
        self.proc = proc
        self.pid = pid
        self.exit_code = exit_code
        self.signal = signal
        self.log_tail: tuple[str, ...] = tuple(log_tail)
        self.endpoint = endpoint
        if cause is not None:
            self.__cause__: BaseException | None = cause

    @property
    def where(self) -> Where:
        """The location of the target: actor, rank, point, host, proc, pid and endpoint."""
        return Where(
            mesh_name=self.mesh_name,
            actor=self.actor,
            rank=self.rank,
            point=self.point,
            host=self.host,
            proc=self.proc,
            pid=self.pid,
            endpoint=self.endpoint,
        )

    def how(self) -> str:
        """Describe the failure in one clause."""
        return f"{self._what}: {self.reason}" if self.reason else self._what

    def hint(self) -> str:
        """Return advice for the reader of the error message."""
        return self._to_do

    def __repr__(self) -> str:
        fields = {"reason": self.reason, "exit_code": self.exit_code, "signal": self.signal}
        known = [f"{name}={value!r}" for name, value in fields.items() if value is not None]
        return f"{type(self).__qualname__}({', '.join((*known, repr(self.where)))})"

    def __str__(self) -> str:
        where = self.where
        place = where.place()
        lines = [f"{where.subject()}{f', {place},' if place else ''} {self.how()}"]
        if self.endpoint:
            lines[0] += f"; endpoint {self.endpoint!r} did not reply"
        if self.__cause__ is not None:
            text = safe_str(self.__cause__).partition("\n")[0]
            lines.append(f"  caused by {type(self.__cause__).__qualname__}: {text}")
        if isinstance(self, ProcDied) and self.actors:
            lines.append(f"  actors that died with it: {'; '.join(self.lost_actors())}")
        if self.log_tail:
            lines.append("  last lines of its log:")
            lines.extend(f"    | {line[:_LOG_LINE_LEN_MAX]}" for line in self.log_tail)
        lines.extend(_other_failures(self))
        lines.append(f"  hint: {self.hint()}")
        return "\n".join(lines)


class ProcDied(SupervisionError):
    """A process exited or was killed without a request to stop.

    Attributes:
        rank: The rank in the mesh; 0 for a process that belongs to no mesh.
        actors: The known actors of the process. The process that creates the error knows the actors
            that it spawned there itself, and the actors spawned by a process whose failure was
            caused by this one.
    """

    rank: int  # pyright: ignore[reportIncompatibleVariableOverride]

    _what = "died"
    _to_do = "catch ProcDied around the call, replace the rank, or spawn with a restart strategy"

    def __init__(
        self,
        reason: str | None = None,
        *,
        rank: int = 0,
        actors: Sequence[Where] = (),
        **known: Any,
    ) -> None:
        super().__init__(reason, rank=rank, **known)
        self.actors: tuple[Where, ...] = tuple(actors)

    def lost_actors(self) -> list[str]:
        """Name the actors in the process: at most eight, then a count of the others."""
        named = [
            f"{one.subject()}, {one.place()}" if one.place() else one.subject()
            for one in self.actors[:_FAILURES_SHOWN_MAX]
        ]
        left = len(self.actors) - len(named)
        return [*named, f"{left} more"] if left else named

    def how(self) -> str:
        """Describe how the process ended: the signal that killed it, or its exit status."""
        if self.signal is not None:
            how = f"died: killed by {signal_name(self.signal)}"
        elif self.exit_code is not None:
            how = f"died: its process exited with status {self.exit_code}"
        else:
            how = "died: its process is gone"
        return f"{how} ({self.reason})" if self.reason else how

    def hint(self) -> str:
        """Return the usual cause of the signal and advice on how to handle the loss."""
        about = signal_hint(self.signal)
        return f"{about}; {self._to_do}" if about else self._to_do


class HostDied(SupervisionError):
    """A host is lost: its agent exited, or the host missed too many heartbeats."""

    _what = "is lost: its host died"
    _to_do = "catch HostDied around the call, and replace the host or continue without it"


class ActorFailed(SupervisionError):
    """An actor failed and accepts no more calls; `__cause__` is the original failure."""

    _what = "failed"
    _to_do = (
        "spawn it again, spawn it with a restart strategy, or define __supervise__ in its owner"
    )


class MeshStopped(SupervisionError):
    """A mesh was stopped and accepts no more calls."""

    _what = "is stopped"
    _to_do = "spawn it again, or call it before it is stopped"


class MailboxFull(MeshError):
    """The mailbox of a receiver is full; the message was not delivered.

    Attributes:
        len_max: The maximum number of messages in the mailbox.
        actor: The actor that owns the mailbox.
    """

    def __init__(self, len_max: int, actor: str | None = None) -> None:
        super().__init__(len_max, actor)
        self.len_max = len_max
        self.actor = actor

    def __str__(self) -> str:
        whose = f"mailbox of actor {self.actor!r}" if self.actor else "mailbox"
        return (
            f"{whose} is full ({self.len_max} messages): "
            "wait for replies before sending more, or spawn with a larger mailbox_len_max"
        )


class DeadlineExceeded(MeshError, TimeoutError):
    """A call did not complete within its timeout and was cancelled at the actor.

    Attributes:
        endpoint: The endpoint that was called.
        timeout: The timeout of the call, in seconds.
        actor: The actor that did not reply in time.
        rank: The rank of the actor, if the call was to a single rank.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        timeout: float | None = None,
        actor: str | None = None,
        *,
        rank: int | None = None,
    ) -> None:
        # Pass at most one argument: TimeoutError is an OSError, which turns more arguments into
        # errno and strerror.
        super().__init__(*(() if endpoint is None else (endpoint,)))
        self.endpoint = endpoint
        self.timeout = timeout
        self.actor = actor
        self.rank = rank

    def __str__(self) -> str:
        call = f"call of {self.endpoint!r}" if self.endpoint else "call"
        to = f" to actor {self.actor!r}" if self.actor else ""
        rank = f" on rank {self.rank}" if self.rank is not None else ""
        limit = f"its timeout of {self.timeout:g} s" if self.timeout is not None else "its timeout"
        return (
            f"{call}{to}{rank} took longer than {limit}: "
            "increase the timeout, or check what the endpoint does"
        )


class _Worded(MeshError):
    """An error whose only field is its text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class CallCancelled(_Worded):
    """A call was cancelled by its caller, or because the actor that made it ended."""


class DeadlockError(_Worded):
    """Actors wait for each other in a cycle, so none of them can ever reply.

    Attributes:
        cycle: The actors of the cycle; each waits for the next one, and the last waits for the
            first.
    """

    def __init__(self, message: str, *, cycle: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.cycle: tuple[str, ...] = tuple(cycle)


class DrainFailed(_Worded):
    """A host could not be moved to another machine, and continues to serve.

    Nothing was lost: calls that were held in the meantime have been delivered.
    """


class SpawnError(_Worded):
    """A process, an actor or a mesh could not be started."""


class ConfigError(_Worded, ValueError):
    """A configuration setting is unknown, or its value is invalid."""


class ChannelClosed(_Worded):
    """The channel has no senders or no receiver left."""


class NoReply(_Worded):
    """An endpoint dropped its response port without replying."""


class ForeignHandle(MeshError):
    """A handle was unpickled in a process of another job than the job that created it.

    Attributes:
        handle: The kind and the name of the unpickled handle, such as `actor mesh 'trainers'`.
        job: The id of the job that created the handle, in hexadecimal.
        own_job: The id of the job of this process; empty if it belongs to no job.
    """

    def __init__(self, handle: str, job: str, own_job: str) -> None:
        super().__init__(handle, job, own_job)
        self.handle = handle
        self.job = job
        self.own_job = own_job

    def __str__(self) -> str:
        own = f"to job {self.own_job}" if self.own_job else "to no job"
        return (
            f"{self.handle} belongs to job {self.job}, but this process belongs {own}: a handle "
            "works only in the job that created it; spawn the mesh in this program, or take over "
            "the other job with mesh_core.take_over"
        )


class Unpicklable(_Worded, TypeError):
    """A value cannot be pickled, so the message was not sent.

    Attributes:
        path: The path to the offending object in the message, such as `argument 'batch'[2].lock`.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


def join_failures(failures: Sequence[Failure], first: BaseException | None = None) -> BaseException:
    """Return the first failure of a call of several ranks, with all failures in its `failures`.

    Args:
        failures: The position and the error of each failed rank, in the order in which an error
            message names them. Not empty.
        first: The error to return; by default the first of `failures`. Pass the earliest failure if
            it is not the first in that list.
    """
    if first is None:
        first = failures[0][1]
    first.__dict__["_mesh_failures"] = tuple(failures)
    return first


def _other_failures(error: MeshError) -> list[str]:
    """Return at most one line that names the other ranks that failed in the same call."""
    failures: tuple[Failure, ...] = error.__dict__.get("_mesh_failures", ())
    others = [(place, other) for place, other in failures if other is not error]
    if not others:
        return []
    named = [
        f"{position_text(place)} ({type(other).__qualname__})"
        for place, other in others[:_FAILURES_SHOWN_MAX]
    ]
    left = len(others) - len(named)
    tail = f" and {left} more" if left else ""
    return [f"  failed as well: {', '.join(named)}{tail}; see .failures"]


# Tracebacks show the public name, such as mesh_core.ProcDied.
for _error in list(globals().values()):
    if isinstance(_error, type) and issubclass(_error, MeshError) and _error is not _Worded:
        _error.__module__ = "mesh_core"
