"""A result that is read in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mesh_telemetry._errors import TelemetryError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from mesh_telemetry._query.coverage import Coverage

__all__ = ["Stream"]


class Stream:
    """The rows of a result as batches, returned by `Telemetry.stream`; a context manager.

    Closing it before its end stops the computation on the hosts.

    Attributes:
        schema: The columns.

    Example:
        >>> with telemetry.stream("select * from messages where bytes > 1000") as stream:
        ...     for batch in stream:
        ...         print(batch.num_rows)
        >>> stream.coverage.is_full
        True
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        coverage: Callable[[], Coverage],
    ) -> None:
        self.schema: pa.Schema = schema
        self._batches = batches
        self._coverage = coverage
        self._is_read = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch.

        Raises:
            QueryError: The query fails on the rows, or exceeds its limits.
            CoverageError: No host replied, or a host did not reply and all were required.
        """
        try:
            return next(self._batches)
        except StopIteration:
            self._is_read = True
            raise

    @property
    def coverage(self) -> Coverage:
        """The hosts that the rows come from.

        Raises:
            TelemetryError: The stream has not been read to its end.
        """
        if not self._is_read:
            raise TelemetryError("not known until all rows have been read: read to the end first")
        return self._coverage()

    def close(self) -> None:
        """Cancel the rest of the query; later calls do nothing."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
