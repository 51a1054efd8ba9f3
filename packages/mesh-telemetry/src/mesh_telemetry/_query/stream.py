"""An answer that is read a part at a time."""

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
    """The rows of an answer, as batches; `Telemetry.stream` gives it. A context manager.

    Who stops reading closes it: hosts then compute no further.

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
        """Gives the next batch.

        Raises:
            QueryError: The question fails on the rows, or wants too much.
            CoverageError: No host has answered, or not all and all were wanted.
        """
        try:
            return next(self._batches)
        except StopIteration:
            self._is_read = True
            raise

    @property
    def coverage(self) -> Coverage:
        """Which hosts the rows are of.

        Raises:
            TelemetryError: It has not been read to its end.
        """
        if not self._is_read:
            raise TelemetryError("it is known when all has been read: read to the end first")
        return self._coverage()

    def close(self) -> None:
        """Gives up what has not been read. Twice is the same as once."""
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
