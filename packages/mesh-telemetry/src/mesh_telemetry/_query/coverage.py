"""How much of the system an answer speaks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Answer", "Coverage", "HostFailure", "Shipped"]


@dataclass(frozen=True)
class HostFailure:
    """A host that did not answer, or not all that it was asked.

    Attributes:
        host: The host's name.
        cause: Why, as text.
    """

    host: str
    cause: str


@dataclass(frozen=True)
class Shipped:
    """What came from all hosts together for one table.

    Attributes:
        table: The table's name.
        rows: How many rows came: of groups or first rows where hosts could prepare them.
        bytes: How many bytes, as they were sent.
    """

    table: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Coverage:
    """Which hosts an answer is of, and what it took.

    Attributes:
        asked: The names of the hosts that were asked, sorted.
        answered: Those that answered everything.
        failed: Those that did not, with the cause.
        shipped: What was sent for each table.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    failed: tuple[HostFailure, ...]
    shipped: tuple[Shipped, ...]

    @property
    def is_full(self) -> bool:
        """Whether every host that was asked answered."""
        return not self.failed

    @property
    def rows_shipped(self) -> int:
        """How many rows came from hosts."""
        return sum(each.rows for each in self.shipped)

    @property
    def bytes_shipped(self) -> int:
        """How many bytes came from hosts."""
        return sum(each.bytes for each in self.shipped)


@dataclass(frozen=True)
class Answer:
    """The answer to a query.

    Attributes:
        table: The rows, with plain Arrow types.
        coverage: Of which hosts it is.
    """

    table: pa.Table
    coverage: Coverage
