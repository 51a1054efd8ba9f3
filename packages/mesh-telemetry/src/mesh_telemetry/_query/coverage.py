"""The share of the hosts that a result covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_core.spi import html_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Coverage", "HostFailure", "QueryResult", "TransferStats"]

_ROWS_SHOWN_MAX = 50


@dataclass(frozen=True)
class HostFailure:
    """A host that did not reply, or did not reply to every request.

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
    """The hosts that a result covers, and the data that they sent.

    Attributes:
        queried: The names of the hosts that were queried, sorted.
        replied: The hosts that replied to every request.
        failed: The hosts that did not, each with the cause.
        shipped: The data that was sent for each table.
    """

    queried: tuple[str, ...]
    replied: tuple[str, ...]
    failed: tuple[HostFailure, ...]
    shipped: tuple[TransferStats, ...]

    @property
    def is_full(self) -> bool:
        """Whether every queried host replied."""
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
    """The result of a query.

    Attributes:
        table: The rows, with plain Arrow types.
        coverage: The hosts that the rows come from.
    """

    table: pa.Table
    coverage: Coverage

    def _repr_html_(self) -> str:
        """Return the first rows as a table, for notebooks."""
        rows = self.table.slice(0, _ROWS_SHOWN_MAX).to_pylist()
        title = f"{self.table.num_rows} rows"
        if not self.coverage.is_full:
            missing = ", ".join(each.host for each in self.coverage.failed)
            title = f"{title}, without those of {missing}"
        heads = self.table.column_names
        cells = [["" if row[head] is None else str(row[head]) for head in heads] for row in rows]
        return html_table(title, heads, cells, self.table.num_rows - len(rows))
