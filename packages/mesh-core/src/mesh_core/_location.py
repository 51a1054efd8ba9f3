"""Location of a failure and its description in text."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["Where", "position_of", "position_text", "signal_hint", "signal_name"]

# The names of the signals 1 to 31 on Linux. The module `signal` has them too, but takes as long to
# import as all other modules that errors need.
_SIGNALS = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP "
    "TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
_SIGNAL_HINTS = {
    4: "a native library executed an instruction that this CPU does not support",
    6: "a native library called abort(): its last message is in the log",
    7: "a mapped file or segment was truncated, or shared memory (/dev/shm) is full",
    9: "SIGKILL is often sent by the kernel when memory runs out (see dmesg)",
    11: "a native library crashed: if faulthandler is on, its stack is in the log",
}


class Where:
    """Location of a failure, as far as it is known.

    Attributes:
        mesh_name: The name that the mesh of the actor was spawned with.
        actor: The class or the name of the actor.
        rank: The rank in the mesh, in row-major order.
        point: The coordinates in the mesh, by dimension.
        host: The name of the host.
        proc: The name of the process.
        pid: The process id on that host.
        endpoint: The endpoint that was called.
    """

    __slots__ = ("actor", "endpoint", "host", "mesh_name", "pid", "point", "proc", "rank")

    def __init__(
        self,
        *,
        mesh_name: str | None = None,
        actor: str | None = None,
        rank: int | None = None,
        point: Mapping[str, int] | None = None,
        host: str | None = None,
        proc: str | None = None,
        pid: int | None = None,
        endpoint: str | None = None,
    ) -> None:
        self.mesh_name: str | None = mesh_name
        self.actor: str | None = actor
        self.rank: int | None = rank
        self.point: Mapping[str, int] | None = point
        self.host: str | None = host
        self.proc: str | None = proc
        self.pid: int | None = pid
        self.endpoint: str | None = endpoint

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            setattr(self, name, value)

    def __repr__(self) -> str:
        known = ((name, getattr(self, name)) for name in self.__slots__)
        return f"Where({', '.join(f'{n}={v!r}' for n, v in known if v is not None)})"

    def subject(self) -> str:
        """Name the actor, as far as it is known: `actor 'Trainer' of mesh 'trainers'`."""
        mesh = f" of mesh {self.mesh_name!r}" if self.mesh_name else ""
        if self.actor and self.actor != self.mesh_name:
            return f"actor {self.actor!r}{mesh}"
        if self.mesh_name:
            return f"mesh {self.mesh_name!r}"
        if self.actor:
            return f"actor {self.actor!r}"
        if self.proc:
            return f"process {self.proc!r}"
        return f"host {self.host!r}" if self.host else "an actor"

    def place(self) -> str:
        """Describe rank, host and process: `rank 3 (gpus=3), host a, proc p3, pid 41`."""
        parts = []
        coordinates = ", ".join(f"{dim}={index}" for dim, index in (self.point or {}).items())
        if self.rank is not None:
            parts.append(f"rank {self.rank}" + (f" ({coordinates})" if coordinates else ""))
        elif coordinates:
            parts.append(f"rank ({coordinates})")
        parts.extend(
            f"{name} {value}"
            for name, value in (("host", self.host), ("proc", self.proc), ("pid", self.pid))
            if value is not None
        )
        return ", ".join(parts)


def position_of(error: BaseException) -> Mapping[str, int] | int | None:
    """Return the coordinates at which an error occurred, or its rank."""
    where = getattr(error, "where", None)
    if where is not None:
        return where.rank if where.point is None else where.point  # type: ignore[no-any-return]
    rank: int | None = getattr(error, "rank", None)
    return rank


def position_text(place: Mapping[str, int] | int | None) -> str:
    """Format a rank that is given as a number or as a point of a mesh."""
    rank = getattr(place, "rank", place)
    return f"rank {rank}" if isinstance(rank, int) else str(place)


def signal_name(number: int) -> str:
    """Format a signal number as `SIGKILL (signal 9)`."""
    names = _SIGNALS.split()
    if not 1 <= number <= len(names):
        return f"signal {number}"
    return f"SIG{names[number - 1]} (signal {number})"


def signal_hint(number: int | None) -> str | None:
    """Return the usual meaning of a signal, or None if it is not known."""
    return _SIGNAL_HINTS.get(number or 0)
