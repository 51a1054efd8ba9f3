"""Recorded programs, the same for Mesh and its peer: workers, queries and stored data."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bench.drivers.actor_program import ActorDriver

_BARRIER_LEN = 10_000


class TelemetryDriver(ActorDriver):
    """Workers on one host, recorded or not."""

    def start_recorded(self, workers: int) -> None:
        """Start telemetry, then workers that are recorded."""
        self.record_host()
        self.start(workers)

    def broadcast(self, n: int) -> None:
        """Send `n` messages to every worker, and wait until all have been received."""
        noop = self._mesh.noop
        for i in range(n):
            noop.broadcast(i)
            if i % _BARRIER_LEN == _BARRIER_LEN - 1:
                noop.call(i).get()
        noop.call(n).get()

    @abstractmethod
    def record_host(self) -> None:
        """Start telemetry."""

    @abstractmethod
    def query(self, sql: str) -> Any:
        """Execute an SQL query and return the result in the client's format."""

    @abstractmethod
    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Execute an SQL query and return the rows."""

    @abstractmethod
    def store_dump(self, dump_id: str, dump: dict[str, Any]) -> None:
        """Store a stack dump in the format of py-spy."""

    @abstractmethod
    def kept_bytes(self) -> int:
        """Return the memory of the component that serves queries for the host, in bytes."""
