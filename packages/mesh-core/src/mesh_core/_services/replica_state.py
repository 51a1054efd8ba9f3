"""The state of a replica as known to a calling process, and the reply of a replica."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

from mesh_core._calls.future import _ERROR, _VALUE, CallFuture
from mesh_core._errors import ActorError, SupervisionError, join_failures
from mesh_core._runtime.runtime import value_of
from mesh_core._shapes.shape import Extent, Point
from mesh_core._shapes.value_mesh import ValueMesh
from mesh_core._supervision.failure import error_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._core import Message
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._services.router import Router

__all__ = ["Place", "ReplicaFuture", "WholeReplicaFuture", "is_loss"]

R = TypeVar("R")
# How long a replica is avoided after it failed a call; by then its service has reported its state.
_AVOID_S = 1.0


def is_loss(error: BaseException | None) -> bool:
    """Return whether a call failed because of its replica, and not because the endpoint raised."""
    return isinstance(error, SupervisionError) and not isinstance(error, ActorError)


class Place:
    """A replica as known to this process.

    Attributes:
        id: Its number.
        mesh: Its actors.
        is_open: Whether it accepts new calls.
        calls: Outstanding calls of this process.
        sessions: Sessions of this process that are bound to it.
        other_calls: Outstanding calls of other processes, as last reported.
        other_sessions: Sessions of other processes.
        error: The error with which the latest call was lost.
    """

    __slots__ = (
        "_avoided_until",
        "_linked",
        "_procs",
        "calls",
        "error",
        "id",
        "is_open",
        "mesh",
        "other_calls",
        "other_sessions",
        "sessions",
    )

    def __init__(self, id: int, mesh: ActorMesh[Any]) -> None:
        self.id: int = id
        self.mesh: ActorMesh[Any] = mesh
        self.is_open: bool = True
        self.calls: int = 0
        self.sessions: int = 0
        self.other_calls: int = 0
        self.other_sessions: int = 0
        self.error: BaseException | None = None
        self._avoided_until = 0.0
        self._procs = [mesh._proc_of(rank) for rank in range(len(mesh))]
        # The processes that had a connection at the last check.
        self._linked: set[int] = set()

    @property
    def load(self) -> int:
        """Outstanding calls of all callers."""
        return self.calls + self.other_calls

    @property
    def session_load(self) -> tuple[int, int]:
        """The sort key for new sessions: the number of sessions, then the number of calls."""
        return self.sessions + self.other_sessions, self.load

    def is_usable(self) -> bool:
        """Return whether it accepts new calls, as far as known."""
        if not self._avoided_until:
            return self.is_open
        return self.is_open and time.monotonic() >= self._avoided_until

    def has_lost_link(self) -> bool:
        """Return whether a connection was lost since the last check; a call would then be lost."""
        is_up = self.mesh._runtime.engine.is_up
        up = {proc for proc in self._procs if is_up(proc)}
        is_lost = not self._linked <= up
        self._linked = up
        return is_lost

    def avoid(self, error: BaseException | None) -> None:
        """Avoid the replica until its service has had time to report its state."""
        self.error = error
        self._avoided_until = time.monotonic() + _AVOID_S


class ReplicaFuture(CallFuture[R], Generic[R]):
    """The reply of one replica: the reply of its first actor, once all actors have replied.

    An outstanding call counts as load of its replica.
    """

    __slots__ = ("_router", "place")

    def __init__(
        self, reply: int, endpoint: Endpoint[..., Any], router: Router, place: Place
    ) -> None:
        super().__init__(reply, endpoint)
        self._router: Router | None = router
        self.place: Place = place

    def is_lost(self) -> bool:
        """Return whether the call has failed because of its replica."""
        return self._state == _ERROR and is_loss(self._outcome)

    def _settle(self, state: int, outcome: Any) -> None:
        super()._settle(state, outcome)
        self._release()

    def _release(self) -> None:
        router, self._router = self._router, None
        if router is not None:
            router.answered(self._reply, self.place)

    def _settle_with(self, answers: list[Message]) -> None:
        failed = [message for message in answers if message.code]
        if failed:
            region = self._endpoint._mesh._region
            extent = Extent(region.labels, region.sizes)
            failures = [(Point(m.rank, extent), error_of(m, self._endpoint)) for m in failed]
            first = failures[0][1]
            failures.sort(key=lambda failure: failure[0].rank)
            self._settle(_ERROR, join_failures(failures, first) if len(failures) > 1 else first)
            return
        self._settle(_VALUE, self._value(answers))

    def _value(self, answers: list[Message]) -> Any:
        for message in answers:
            if message.rank == 0:
                return value_of(message)
        raise AssertionError("every actor has answered")

    def __del__(self) -> None:
        self._release()


class WholeReplicaFuture(ReplicaFuture[R]):
    """The replies of all actors of one replica."""

    __slots__ = ()

    def _value(self, answers: list[Message]) -> Any:
        answers.sort(key=lambda message: message.rank)
        return ValueMesh(self._endpoint._mesh._region, [value_of(m) for m in answers])
