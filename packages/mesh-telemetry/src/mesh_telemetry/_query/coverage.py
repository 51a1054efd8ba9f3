"""The share of the hosts that an answer covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QueryResult", "Coverage", "HostFailure", "TransferStats"]


@dataclass(frozen=True)
class HostFailure:
    """A host that did not answer, or not every request.

    Attributes:
        host: The host's name.
        cause: The cause as text.
    """

    host: str
    cause: str


@dataclass(frozen=True)
class TransferStats:
    """Data that all hosts together sent for one table.

    Attributes:
        table: The table's name.
        rows: The number of rows that were sent; groups or first rows if hosts could compute them.
        bytes: Their size as sent.
    """

    table: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Coverage:
    """The hosts that an answer covers, and the data that they sent.

    Attributes:
        asked: The names of the hosts that were queried, sorted.
        answered: The hosts that answered every request.
        failed: The hosts that did not, each with the cause.
        shipped: The data that was sent for each table.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    failed: tuple[HostFailure, ...]
    shipped: tuple[TransferStats, ...]

    @property
    def is_full(self) -> bool:
        """Whether every queried host answered."""
        return not self.failed

    @property
    def rows_shipped(self) -> int:
        """The number of rows that hosts sent."""
        return sum(each.rows for each in self.shipped)

    @property
    def bytes_shipped(self) -> int:
        """The number of bytes that hosts sent."""
        return sum(each.bytes for each in self.shipped)


@dataclass(frozen=True)
class QueryResult:
    """The answer to a query.

    Attributes:
        table: The rows, with plain Arrow types.
        coverage: The hosts that the rows come from.
    """

    table: pa.Table
    coverage: Coverage
