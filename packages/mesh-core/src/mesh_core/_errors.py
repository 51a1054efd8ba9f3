"""The errors that Mesh raises, as one small tree under `MeshError`.

Every error carries what is known as typed fields, reads as one short paragraph, and can be pickled.
Nothing here imports anything heavy: an error must be cheap to make, and cheap to have at hand.
"""

from __future__ import annotations

from mesh_core._supervision.location import (
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
    """Makes an error again without running its `__init__`, which may want other arguments."""
    error = cls.__new__(cls, *args)
    error.args = args
    return error


def _portable_cause(cause: BaseException) -> BaseException:
    """Gives the cause itself when it can be pickled, and its text as a `MeshError` when not."""
    from pickle import dumps

    try:
        dumps(cause, 5)
    except Exception:
        return MeshError(f"{type(cause).__qualname__}: {safe_str(cause)}")
    return cause


def safe_str(value: object) -> str:
    """Gives `str(value)`, or says what stands in its place when that raises."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__qualname__} whose str() raised {type(error).__qualname__}>"


class _Shadowable:
    """An attribute of ours that gives way to one of the same name in a user's own exception.

    It defines no `__set__`, so an entry in the instance's `__dict__` comes first.
    """

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        return self if instance is None else self._read(instance)


class MeshError(Exception):
    """Anything that Mesh itself raises.

    A remote exception arrives as an `ActorError` that is an instance of its own type as well.
    """

    if TYPE_CHECKING:

        @property
        def failures(self) -> tuple[Failure, ...]:
            """Every rank's failure of the call that raised this, itself among them."""
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
    """An exception that an actor raised while it served a call.

    What is raised is an instance of a class that derives from this one *and* from the exception's
    own type, so that `except ValueError` and `except ActorError` both catch it. An attribute of the
    user's own exception wins over one of ours of the same name; `exception`, `exception_formatted`
    and `where` are always ours.
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
        # Past the class's own way of setting attributes, which may refuse.
        self.__dict__["_mesh_exception"] = exception
        self.__dict__["_mesh_message"] = safe_str(exception) if message is None else message
        self.__dict__["_mesh_formatted"] = exception_formatted
        self.__dict__["_mesh_where"] = where or Where()

    @property
    def exception(self) -> BaseException:
        """The exception as the actor raised it."""
        return self.__dict__["_mesh_exception"]  # type: ignore[no-any-return]

    @property
    def exception_formatted(self) -> str:
        """The traceback in the actor, as text."""
        return self.__dict__["_mesh_formatted"]  # type: ignore[no-any-return]

    @property
    def where(self) -> Where:
        """The place: actor, rank, point, host, proc, pid and endpoint."""
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

    # An exception's own class may compare by its fields, be frozen, or look attributes up in its
    # own way. While an error is raised and handled, all of these must work as they do for others.
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
        # A class made for a raised exception is none of the business of that exception's own class,
        # which may want arguments here, or keep a register of its subclasses.
        if "_mesh_is_raised_as" not in cls.__dict__:
            super().__init_subclass__(**kwargs)


class SupervisionError(MeshError, RuntimeError):
    """The target of a call, or something that is owned, failed or stopped and cannot answer.

    Attributes:
        mesh_name: The name of the mesh that it belongs to.
        actor: The actor's class or name.
        rank: Its place in the mesh, row-major.
        point: Its coordinates in the mesh, by dimension.
        host: The name of its host.
        proc: The name of its process.
        pid: The process id on that host.
        exit_code: The process's exit status, when it exited.
        signal: The number of the signal that ended the process, when one did.
        log_tail: The last lines that the process wrote.
        endpoint: The endpoint whose caller is told.
        reason: What happened, in words, when no field says it.
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
        """The place: actor, rank, point, host, proc, pid and endpoint."""
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
        """Says what happened, in one clause."""
        return f"{self._what}: {self.reason}" if self.reason else self._what

    def hint(self) -> str:
        """Says what the reader can do about it."""
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
            lines[0] += f"; endpoint {self.endpoint!r} gave no answer"
        if self.__cause__ is not None:
            text = safe_str(self.__cause__).partition("\n")[0]
            lines.append(f"  because of {type(self.__cause__).__qualname__}: {text}")
        if isinstance(self, ProcDied) and self.actors:
            lines.append(f"  actors that died with it: {'; '.join(self.casualties())}")
        if self.log_tail:
            lines.append("  the last lines of its log:")
            lines.extend(f"    | {line[:_LOG_LINE_LEN_MAX]}" for line in self.log_tail)
        lines.extend(_other_failures(self))
        lines.append(f"  to do: {self.hint()}")
        return "\n".join(lines)


class ProcDied(SupervisionError):
    """A process ended without being asked to.

    Attributes:
        rank: Its place in the mesh; 0 for a process that is none of a mesh's.
        actors: The actors that lived in it, as far as they are known where the error is made: the
            ones that were spawned there by this process, or by one whose failure this led to.
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

    def casualties(self) -> list[str]:
        """Name the actors that lived in the process, at most eight and a count of the others."""
        named = [
            f"{one.subject()}, {one.place()}" if one.place() else one.subject()
            for one in self.actors[:_FAILURES_SHOWN_MAX]
        ]
        left = len(self.actors) - len(named)
        return [*named, f"{left} more"] if left else named

    def how(self) -> str:
        """Says how the process ended: by which signal, or with which exit status."""
        if self.signal is not None:
            how = f"died: killed by {signal_name(self.signal)}"
        elif self.exit_code is not None:
            how = f"died: its process exited with status {self.exit_code}"
        else:
            how = "died: its process is gone"
        return f"{how} ({self.reason})" if self.reason else how

    def hint(self) -> str:
        """Says what often sends such a signal, and what to do about the loss."""
        about = signal_hint(self.signal)
        return f"{about}; {self._to_do}" if about else self._to_do


class HostDied(SupervisionError):
    """A host is gone: its agent ended, or it was silent for too many heartbeats."""

    _what = "is lost: its host died"
    _to_do = "catch HostDied around the call, and replace the host or go on without it"


class ActorFailed(SupervisionError):
    """An actor failed, and takes no more calls; `__cause__` is what it failed with."""

    _what = "failed"
    _to_do = (
        "spawn it again, spawn it with a restart strategy, or define __supervise__ in its owner"
    )


class MeshStopped(SupervisionError):
    """A mesh was stopped, and takes no more calls."""

    _what = "is stopped"
    _to_do = "spawn it again, or call it before it is stopped"


class MailboxFull(MeshError):
    """A receiver's mailbox holds as many messages as it may; this one was not delivered.

    Attributes:
        len_max: The most messages that the mailbox holds.
        actor: The actor whose mailbox it is.
    """

    def __init__(self, len_max: int, actor: str | None = None) -> None:
        super().__init__(len_max, actor)
        self.len_max = len_max
        self.actor = actor

    def __str__(self) -> str:
        whose = f"mailbox of actor {self.actor!r}" if self.actor else "mailbox"
        return (
            f"{whose} is full ({self.len_max} messages): "
            "wait for answers before sending more, or spawn with a larger mailbox_len_max"
        )


class DeadlineExceeded(MeshError, TimeoutError):
    """A call did not end within its timeout; the callee was told to give up.

    Attributes:
        endpoint: The endpoint that was called.
        timeout: The seconds that the call was given.
        actor: The actor that did not answer in time.
        rank: Its rank, when the call was to one.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        timeout: float | None = None,
        actor: str | None = None,
        *,
        rank: int | None = None,
    ) -> None:
        # One argument at most: of more, TimeoutError (an OSError) would make errno and strerror.
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
        return f"{call}{to}{rank} took longer than {limit}: allow more, or look at what it does"


class _Worded(MeshError):
    """An error whose only field is its text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class CallCancelled(_Worded):
    """The call was cancelled, by its caller or with the actor that made it."""


class DeadlockError(_Worded):
    """Actors wait for each other in a circle, so none of them can ever answer.

    Attributes:
        cycle: The actors of the circle, each waiting for the next and the last for the first.
    """

    def __init__(self, message: str, *, cycle: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.cycle: tuple[str, ...] = tuple(cycle)


class SpawnError(_Worded):
    """A process, actor or mesh could not be started."""


class ConfigError(_Worded, ValueError):
    """A setting is unknown, or its value is not one that it takes."""


class ChannelClosed(_Worded):
    """Nobody can send to this channel any more, or nobody receives from it."""


class NoReply(_Worded):
    """The endpoint let go of its response port without answering."""


class ForeignHandle(MeshError):
    """A handle was unpickled in a process of another job than the one that created it.

    Attributes:
        handle: What was unpickled, such as `actor mesh 'trainers'`.
        job: The id of the job that created the handle, in hexadecimal.
        own_job: The id of the job of this process; empty if it has none.
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
    """A value cannot be sent.

    Attributes:
        path: Where it sits in what was to be sent: `argument 'batch'[2].lock`.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


def join_failures(failures: Sequence[Failure], first: BaseException | None = None) -> BaseException:
    """Gives the first failure of a call to many ranks, with all of them in its `failures`.

    Args:
        failures: For each rank that failed its position and its error, at least one, in the order
            in which they are to be named.
        first: The one to raise: which came first in time, where that is not the first one named.
    """
    if first is None:
        first = failures[0][1]
    first.__dict__["_mesh_failures"] = tuple(failures)
    return first


def _other_failures(error: MeshError) -> list[str]:
    """Says, in at most one line, who else failed in the same call."""
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


# A traceback names them as a program does: mesh_core.ProcDied.
for _error in list(globals().values()):
    if isinstance(_error, type) and issubclass(_error, MeshError) and _error is not _Worded:
        _error.__module__ = "mesh_core"
