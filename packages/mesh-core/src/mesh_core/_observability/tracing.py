"""Spans, metrics and rows of the program, recorded as events.

They cost almost nothing while there is no subscriber. The subscriber decides where to export them
(OpenTelemetry, tables, files).
"""

from __future__ import annotations

from functools import wraps
from itertools import count
from typing import Any, ParamSpec, TypeVar, overload

from mesh_core._observability.events import recorder
from mesh_core._observability.trace_context import current_span, enter_span, new_span
from mesh_core._runtime.serving import serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

__all__ = [
    "Meter",
    "Span",
    "get_meter",
    "is_recorded",
    "record_row",
    "span",
    "traced",
]

P = ParamSpec("P")
R = TypeVar("R")

_numbers = count(1)


class Span:
    """A named time interval in one thread or task; a context manager.

    A span records the events `span_begin` and `span_end`. In both, `call` is the number of the span
    in this process, `actor` the running actor and `text` the name. In `span_begin`, `size` is the
    number of the enclosing span and `subject` the `SpanIdentity`. In `span_end`, `code` is 1 if an
    exception ended the span.
    """

    __slots__ = ("_attributes", "_is_recorded", "_name", "_number", "_outer")

    def __init__(self, name: str, attributes: Mapping[str, Any] | None) -> None:
        self._name = name
        self._attributes = attributes
        self._is_recorded = False

    def __enter__(self) -> Span:
        self._is_recorded = recorder.is_on
        if self._is_recorded:
            self._outer = outer = current_span()
            self._number = next(_numbers)
            identity = new_span(self._number)
            enter_span(identity)
            recorder.record(
                "span_begin",
                actor=_actor(),
                call=self._number,
                size=0 if outer is None else outer.number,
                text=self._name,
                attributes=self._attributes,
                subject=identity,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_recorded:
            # Do not use a token: a generator may end in a different context than it began in.
            enter_span(self._outer)
            recorder.record(
                "span_end",
                actor=_actor(),
                call=self._number,
                code=int(kind is not None),
                text=self._name,
            )


def span(name: str, attributes: Mapping[str, Any] | None = None) -> Span:
    """Return a context manager that records its block as a span of the running actor.

    Args:
        name: The name of the span.
        attributes: Additional attributes of the span.

    Example:
        >>> from mesh_core import span
        >>> with span("load"):
        ...     batch = [1, 2, 3]
    """
    return Span(name, attributes)


@overload
def traced(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def traced(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def traced(function: Any = None, /, *, name: str | None = None) -> Any:
    """Record each call of a function, plain or `async`, as a span.

    Args:
        function: The function.
        name: The name of the span; defaults to the qualified name of the function.

    Example:
        >>> from mesh_core import traced
        >>> @traced
        ... def double(n: int) -> int:
        ...     return 2 * n
        >>> double(4)
        8
    """

    def decorate(function: Any) -> Any:
        shown = name or function.__qualname__
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & 0x80:

            @wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with Span(shown, None):
                    return await function(*args, **kwargs)

            return run_async

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with Span(shown, None):
                return function(*args, **kwargs)

        return run

    return decorate if function is None else decorate(function)


class _Instrument:
    """Base class of instruments; each measurement is an event."""

    __slots__ = ("description", "name", "unit")

    kind = 0

    def __init__(self, name: str, unit: str, description: str) -> None:
        self.name: str = name
        self.unit: str = unit
        self.description: str = description

    def _note(self, value: float, attributes: Mapping[str, Any] | None) -> None:
        if recorder.is_on:
            recorder.record(
                "metric",
                actor=_actor(),
                code=self.kind,
                text=self.name,
                value=value,
                attributes=attributes,
                subject=self,
            )


class Meter:
    """Factory for instruments, with the method names of OpenTelemetry.

    Its nested classes are the types of the instruments.
    """

    __slots__ = ()

    class Counter(_Instrument):
        """A sum that only increases."""

        __slots__ = ()
        kind = 1

        def add(self, amount: float, attributes: Mapping[str, Any] | None = None) -> None:
            """Add an amount, integer or fractional.

            Raises:
                ValueError: The amount is negative.
            """
            if amount < 0:
                raise ValueError(
                    f"counter {self.name!r} cannot decrease by {-amount}: use an up_down_counter"
                )
            self._note(amount, attributes)

    class UpDownCounter(_Instrument):
        """A sum that increases and decreases."""

        __slots__ = ()
        kind = 2

        def add(self, amount: float, attributes: Mapping[str, Any] | None = None) -> None:
            """Add an amount, integer or fractional, positive or negative."""
            self._note(amount, attributes)

    class Histogram(_Instrument):
        """A distribution of values."""

        __slots__ = ()
        kind = 3

        def record(self, value: float, attributes: Mapping[str, Any] | None = None) -> None:
            """Record one value."""
            self._note(value, attributes)

    class Gauge(_Instrument):
        """A metric whose latest value matters."""

        __slots__ = ()
        kind = 4

        def set(self, value: float, attributes: Mapping[str, Any] | None = None) -> None:
            """Record the current value."""
            self._note(value, attributes)

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """Create a sum that only increases."""
        return self.Counter(name, unit, description)

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """Create a sum that increases and decreases."""
        return self.UpDownCounter(name, unit, description)

    def create_histogram(self, name: str, unit: str = "", description: str = "") -> Histogram:
        """Create a distribution of values."""
        return self.Histogram(name, unit, description)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Gauge:
        """Create a metric whose latest value matters."""
        return self.Gauge(name, unit, description)


_meter = Meter()


def get_meter() -> Meter:
    """Return the factory for counters, histograms and gauges.

    Example:
        >>> from mesh_core import get_meter
        >>> steps = get_meter().create_counter("steps", description="batches trained on")
        >>> steps.add(1, {"phase": "warm-up"})
    """
    return _meter


def is_recorded() -> bool:
    """Return whether there is a subscriber; check this before computing an expensive row."""
    return recorder.is_on


def record_row(table: str, row: Mapping[str, Any]) -> None:
    """Send a row for a table to all subscribers; does nothing without subscribers.

    Args:
        table: The name of the table; each package defines its own tables.
        row: The columns of the row.

    Example:
        >>> from mesh_core.spi import record_row
        >>> record_row("checkpoints", {"step": 100, "bytes": 4096})
    """
    if recorder.is_on:
        recorder.record("row", actor=_actor(), text=table, attributes=row)


def _actor() -> int:
    current = serving()
    return 0 if current is None else current.cell.port
