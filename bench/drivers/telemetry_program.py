"""Recorded programs, the same for Mesh and its peer: workers, questions, and what is stored."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bench.drivers.actor_program import ActorDriver

_BARRIER_LEN = 10_000


class TelemetryDriver(ActorDriver):
    """Workers on one host, recorded or not."""

    def start_recorded(self, workers: int) -> None:
        """Starts telemetry, then workers that are recorded."""
        self.record_host()
        self.start(workers)

    def broadcast(self, n: int) -> None:
        """Sends `n` messages to every worker, and waits until all have taken them."""
        noop = self._mesh.noop
        for i in range(n):
            noop.broadcast(i)
            if i % _BARRIER_LEN == _BARRIER_LEN - 1:
                noop.call(i).get()
        noop.call(n).get()

    @abstractmethod
    def record_host(self) -> None:
        """Starts telemetry."""

    @abstractmethod
    def query(self, sql: str) -> Any:
        """Asks in SQL, and gives the answer as the client has it."""

    @abstractmethod
    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Asks in SQL, and gives the rows."""

    @abstractmethod
    def store_dump(self, dump_id: str, dump: dict[str, Any]) -> None:
        """Stores a dump of stacks, as py-spy makes them."""

    @abstractmethod
    def kept_bytes(self) -> int:
        """Says how much memory of its own what answers for the host takes."""
