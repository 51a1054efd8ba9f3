"""Errors of services, in addition to the errors of any call."""

from __future__ import annotations

from mesh_core._errors import MeshError, SupervisionError

__all__ = ["ServiceOverloaded", "SessionMoved"]


class ServiceOverloaded(MeshError):
    """All replicas of a service are at their limit of calls, and the queue of this process is full.

    The call was not sent. Repeat it later, or report the overload to your own callers.

    Attributes:
        service: The name of the service.
        num_replicas: The number of replicas that accept calls.
        outstanding_max: The maximum number of outstanding calls per replica.
        queue_len_max: The maximum number of queued calls of this process.
    """

    def __init__(
        self, service: str, num_replicas: int, outstanding_max: int, queue_len_max: int
    ) -> None:
        super().__init__(service, num_replicas, outstanding_max, queue_len_max)
        self.service: str = service
        self.num_replicas: int = num_replicas
        self.outstanding_max: int = outstanding_max
        self.queue_len_max: int = queue_len_max

    def __str__(self) -> str:
        return (
            f"service {self.service!r} is overloaded: {self.num_replicas} replicas have "
            f"{self.outstanding_max} calls each and {self.queue_len_max} calls are queued: "
            "send fewer calls, or add replicas"
        )


class SessionMoved(SupervisionError):
    """The replica of a session is gone, and its state of the session is lost.

    Raised once for each move. The next call of the session goes to another replica, which needs to
    get the state again. `__cause__` is the failure of the replica, unless it was stopped normally.

    Attributes:
        replica: The number of the replica that is gone.
    """

    _what = "has moved"
    _to_do = "catch SessionMoved, restore the state on the new replica, and call again"

    def __init__(
        self,
        service: str,
        replica: int,
        *,
        endpoint: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(
            f"its replica {replica} is gone",
            mesh_name=service,
            actor="session",
            endpoint=endpoint,
            cause=cause,
        )
        self.replica: int = replica


# Tracebacks show the public name, such as mesh_core.services.SessionMoved.
for _error in (ServiceOverloaded, SessionMoved):
    _error.__module__ = "mesh_core.services"
