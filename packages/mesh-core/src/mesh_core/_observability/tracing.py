"""Spans, measurements and rows of the program, as events beside those of Mesh.

They cost next to nothing while nobody subscribes to events. Where they go from there
(OpenTelemetry, tables, files) is the subscriber's business.
"""

from __future__ import annotations

from functools import wraps
from itertools import count
from typing import Any, ParamSpec, TypeVar, overload

from mesh_core._actors.context import serving
from mesh_core._observability.events import recorder
from mesh_core._observability.trace_context import current_span, enter_span, new_span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

__all__ = [
    "Counter",
    "Gauge",
    "Histogram",
    "Meter",
    "Span",
    "UpDownCounter",
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
    """A stretch of time with a name, in one thread or task; a context manager.

    Its events are `span_begin` and `span_end`: `call` is the span's number in this process, `size`
    on `span_begin` that of the span around it, `actor` the actor that runs, `code` on `span_end`
    1 when an exception ended it, `text` the name; `subject` on `span_begin` its `SpanIdentity`.
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
            # Not by token: a generator may end in another context than it began in.
            enter_span(self._outer)
            recorder.record(
                "span_end",
                actor=_actor(),
                call=self._number,
                code=int(kind is not None),
                text=self._name,
            )


def span(name: str, attributes: Mapping[str, Any] | None = None) -> Span:
    """Gives a context manager that makes a span of its block, attributed to the running actor.

    Args:
        name: What the block does.
        attributes: What else is to be known of it.

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
    """Makes a span of each call of a function, plain or `async`.

    Args:
        function: The function.
        name: The name of the span; the function's own when left out.

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
    """Something that is measured; each measurement is an event."""

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


class Counter(_Instrument):
    """A sum that only grows."""

    __slots__ = ()
    kind = 1

    def add(self, amount: float, attributes: Mapping[str, Any] | None = None) -> None:
        """Adds an amount, whole or not.

        Raises:
            ValueError: The amount is negative.
        """
        if amount < 0:
            raise ValueError(
                f"counter {self.name!r} cannot fall by {-amount}: use an up_down_counter"
            )
        self._note(amount, attributes)


class UpDownCounter(_Instrument):
    """A sum that grows and falls."""

    __slots__ = ()
    kind = 2

    def add(self, amount: float, attributes: Mapping[str, Any] | None = None) -> None:
        """Adds an amount, whole or not, negative or not."""
        self._note(amount, attributes)


class Histogram(_Instrument):
    """Values of which the distribution matters."""

    __slots__ = ()
    kind = 3

    def record(self, value: float, attributes: Mapping[str, Any] | None = None) -> None:
        """Notes one value."""
        self._note(value, attributes)


class Gauge(_Instrument):
    """A value of which the latest matters."""

    __slots__ = ()
    kind = 4

    def set(self, value: float, attributes: Mapping[str, Any] | None = None) -> None:
        """Notes the value that there is now."""
        self._note(value, attributes)


class Meter:
    """Makes instruments; has the method names of OpenTelemetry's."""

    __slots__ = ()

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """Makes a sum that only grows."""
        return Counter(name, unit, description)

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """Makes a sum that grows and falls."""
        return UpDownCounter(name, unit, description)

    def create_histogram(self, name: str, unit: str = "", description: str = "") -> Histogram:
        """Makes something of which the distribution matters."""
        return Histogram(name, unit, description)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Gauge:
        """Makes something of which the latest value matters."""
        return Gauge(name, unit, description)


_meter = Meter()


def get_meter() -> Meter:
    """Gives what makes counters, histograms and gauges.

    Example:
        >>> from mesh_core import get_meter
        >>> steps = get_meter().create_counter("steps", description="batches trained on")
        >>> steps.add(1, {"phase": "warm-up"})
    """
    return _meter


def is_recorded() -> bool:
    """Says whether anybody subscribes: to be asked before a row is made that costs something."""
    return recorder.is_on


def record_row(table: str, row: Mapping[str, Any]) -> None:
    """Tells subscribers of a row, for a table of a package's own; nothing happens without them.

    Args:
        table: The table, by the name that its package gives it.
        row: Its columns.

    Example:
        >>> from mesh_core.spi import record_row
        >>> record_row("checkpoints", {"step": 100, "bytes": 4096})
    """
    if recorder.is_on:
        recorder.record("row", actor=_actor(), text=table, attributes=row)


def _actor() -> int:
    current = serving()
    return 0 if current is None else current.cell.port
