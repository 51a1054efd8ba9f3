"""Which span of which trace the current code runs in, across processes.

Traces and spans have the ids of W3C's Trace Context. While somebody subscribes to events, a message
says in which span it was sent; whoever serves it is in that span until it opens one of its own.
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar

from mesh_core._actors.context import serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

__all__ = [
    "SpanIdentity",
    "TraceContext",
    "current_span",
    "enter_span",
    "new_span",
    "origin",
    "trace_context",
    "with_trace_context",
]

_SAMPLED = 1
_SAMPLED_ONLY = bytes([_SAMPLED])
_NOBODY = bytes(8)
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# The step of SplitMix64: odd, so that different numbers stay different, and far apart.
_SPREAD, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class SpanIdentity:
    """Which span it is that begins: the `subject` of the event `span_begin`.

    Attributes:
        number: Its number in this process; 0 for a span of another.
        served_call: The port of the answers of the message that was served when it began; 0 for
            none.
    """

    __slots__ = ("_encoded", "_parent", "number", "served_call")

    def __init__(
        self, number: int, encoded: bytes, parent: bytes | None = None, served_call: int = 0
    ) -> None:
        self.number: int = number
        self.served_call: int = served_call
        # As messages have it: 16 bytes of trace, 8 of span, 1 of flags.
        self._encoded = encoded
        self._parent = parent

    @property
    def context(self) -> TraceContext:
        """How others refer to it."""
        return _decoded(self._encoded)

    @property
    def parent(self) -> TraceContext | None:
        """The span around it, here or where the message that is served was sent."""
        return None if self._parent is None else _decoded(self._parent)


_current: ContextVar[SpanIdentity | None] = ContextVar("mesh_core.span", default=None)
#: Gives the innermost span of this code; None outside of spans.
current_span = _current.get
#: Makes a span the innermost one, or puts back the one before.
enter_span = _current.set


class TraceContext:
    """A span as others refer to it: an immutable value, which travels.

    Attributes:
        trace_id: The trace, as 32 hexadecimal digits.
        span_id: The span in it, as 16.
        is_sampled: Whether whoever began the trace wants it kept.

    Args:
        trace_id: As above.
        span_id: As above.
        is_sampled: As above.

    Raises:
        ValueError: An id is not so many hexadecimal digits in lower case, or is all zeros.

    Example:
        >>> from mesh_core import TraceContext
        >>> TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7").traceparent
        '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
    """

    __slots__ = ("_encoded",)

    def __init__(self, trace_id: str, span_id: str, is_sampled: bool = True) -> None:
        text = f"00-{trace_id}-{span_id}-{'01' if is_sampled else '00'}"
        self._encoded = _encoded(text)

    @property
    def trace_id(self) -> str:
        """The trace, as 32 hexadecimal digits."""
        return self._encoded[:16].hex()

    @property
    def span_id(self) -> str:
        """The span in it, as 16 hexadecimal digits."""
        return self._encoded[16:24].hex()

    @property
    def is_sampled(self) -> bool:
        """Whether whoever began the trace wants it kept."""
        return bool(self._encoded[24] & _SAMPLED)

    @property
    def traceparent(self) -> str:
        """The value of the header `traceparent` of HTTP."""
        return f"00-{self.trace_id}-{self.span_id}-{self._encoded[24]:02x}"

    @classmethod
    def from_traceparent(cls, text: str) -> TraceContext:
        """Reads the header `traceparent` of HTTP.

        Raises:
            ValueError: It is not one.
        """
        return _decoded(_encoded(text.strip()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TraceContext) and self._encoded == other._encoded

    def __hash__(self) -> int:
        return hash(self._encoded)

    def __repr__(self) -> str:
        return f"<TraceContext {self.traceparent}>"

    def __reduce__(self) -> Any:
        return _decoded, (self._encoded,)


class with_trace_context:
    """Runs its block in a span of somebody else, such as that of an HTTP request.

    Spans of the block, and calls from it, belong there. It follows tasks as any context variable.

    Args:
        context: The span; None leaves everything as it is.

    Example:
        >>> from mesh_core import TraceContext, trace_context, with_trace_context
        >>> header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        >>> with with_trace_context(TraceContext.from_traceparent(header)):
        ...     trace_context().span_id
        '00f067aa0ba902b7'
    """

    __slots__ = ("_context", "_outer")

    def __init__(self, context: TraceContext | None) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._outer = _current.get()
        if self._context is not None:
            _current.set(SpanIdentity(0, self._context._encoded))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Not by token: a generator may end in another context than it began in.
        _current.set(self._outer)


def trace_context() -> TraceContext | None:
    """Gives the span that the current code runs in: to hand it on by other ways than calls.

    That is the innermost `span` that is recorded, else that of the caller whose message is served,
    else None.
    """
    encoded = _encoded_now()
    return None if encoded is None else _decoded(encoded)


def origin() -> bytes | None:
    """Gives what a message says of where it comes from, as in docs/protocol/call.md."""
    current = serving()
    span = _current.get()
    if span is not None:
        return (_NOBODY if current is None else current.cell.sender) + span._encoded
    if current is None:
        return None
    message = current.message
    trace = None if message is None else message.trace
    return current.cell.sender if trace is None else current.cell.sender + trace


def new_span(number: int) -> SpanIdentity:
    """Gives a span its ids: a part of the span around it, or the first one of a trace.

    Args:
        number: That of the span: no two of a process have the same.
    """
    current, span = serving(), _current.get()
    message = None if current is None else current.message
    served_call = 0 if message is None else message.from_port
    around = span._encoded if span is not None else None if message is None else message.trace
    own = _ids.span_id(number)
    if around is None:
        return SpanIdentity(number, _ids.trace + own + own + _SAMPLED_ONLY, None, served_call)
    return SpanIdentity(number, around[:16] + own + around[24:], around, served_call)


class _Ids:
    """Makes ids that no other process makes, out of numbers."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Makes others from now on."""
        self.trace = os.urandom(8)
        self._base = int.from_bytes(os.urandom(8), "big")

    def span_id(self, number: int) -> bytes:
        """Makes the id of a span; never of zeros alone."""
        spread = (self._base + number) * _SPREAD & _MASK
        return (spread or 1).to_bytes(8, "big")


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.begin)


def _encoded_now() -> bytes | None:
    span = _current.get()
    if span is not None:
        return span._encoded
    current = serving()
    message = None if current is None else current.message
    return None if message is None else message.trace


def _encoded(text: str) -> bytes:
    found = _TRACEPARENT.fullmatch(text)
    version, trace_id, span_id, flags, rest = found.groups() if found else ("ff",) * 5
    # What later versions add comes behind; there is no version ff.
    is_known = version != "ff" and (version != "00" or rest is None)
    if not is_known or not trace_id.strip("0") or not span_id.strip("0"):
        raise ValueError(
            f"{text!r} is no trace context: write it like "
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, ids not all zeros"
        )
    return bytes.fromhex(trace_id + span_id + flags)


def _decoded(encoded: bytes) -> TraceContext:
    made: TraceContext = object.__new__(TraceContext)
    made._encoded = encoded
    return made
