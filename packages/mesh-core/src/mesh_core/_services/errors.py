"""What can go wrong with a service, beyond what can go wrong with any call."""

from __future__ import annotations

from mesh_core._errors import MeshError, SupervisionError

__all__ = ["ServiceOverloaded", "SessionMoved"]


class ServiceOverloaded(MeshError):
    """Every replica of a service has all the calls it may have, and as many wait as may wait.

    The call was not sent. It can be made again later, or be answered with "come back later".

    Attributes:
        service: The name of the service.
        num_replicas: How many replicas took calls.
        outstanding_max: How many calls each of them may have.
        queue_len_max: How many calls of this process may wait for room.
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
            f"{self.outstanding_max} calls each and {self.queue_len_max} calls wait: "
            "call less, or give it more replicas"
        )


class SessionMoved(SupervisionError):
    """The replica of a session is gone; what it remembered of the session is lost.

    Raised once for each move. The next call of the session goes to another replica: give that what
    it has to know, and go on. `__cause__` is how the replica ended, where it did not end in order.

    Attributes:
        replica: The number of the replica that is gone.
    """

    _what = "has moved"
    _to_do = "catch SessionMoved, tell the new replica what it has to know, and call again"

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


for _error in (ServiceOverloaded, SessionMoved):
    _error.__module__ = "mesh_core"
