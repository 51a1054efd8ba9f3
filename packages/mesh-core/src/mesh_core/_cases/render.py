"""Payloads as text for people, without decoding them.

No object of a payload is imported, created or called: see `pickle_outline`.
"""

from __future__ import annotations

from mesh_core._cases.case import Omitted
from mesh_core._cases.escape import escape, format_len, shorten
from mesh_core._cases.pickle_outline import (
    Buffer,
    Bytes,
    Items,
    Made,
    Named,
    Pairs,
    Text,
    outline,
)
from mesh_core._cases.pickle_stream import Elided, PickleStream, split_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    Payloads = Sequence[bytes | Omitted]

__all__ = ["Renderer"]

VALUE_LEN_MAX = 400
TRACEBACK_LEN_MAX = 20_000
_TEXT_LEN_MAX = 100
_DEPTH_MAX = 8
_INT_BITS_MAX = 256
# Longer strings and bytes are only measured.
_ARGUMENT_LEN_MAX = 1_024
# Maximum number of bytes that are read of one message, without large values.
_STREAM_LEN_MAX = 100_000
# The same for all messages together: enough for any case that a person reads.
_ALL_STREAMS_LEN_MAX = 10_000_000
# Maximum number of objects in one value that are searched for buffers.
_SEARCHED_MAX = 1_000
# Functions that recreate objects of a known type, and where their arguments have the shape.
_SHAPED = {
    "numpy.ndarray": ("numpy.ndarray", 0),
    "mesh_core._serialization.tensors._tensor": ("torch.Tensor", 3),
}
# Functions whose first argument is the class of the new object.
_CLASS_FIRST = frozenset(
    {
        "copyreg._reconstructor",
        "copyreg.__newobj__",
        "copy_reg._reconstructor",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray._reconstruct",
    }
)
_CLASS_BY_VALUE = "mesh_core._serialization.classes.load_pickled_class"
_REDACTED = "mesh_core._recording.redacted.Redacted"


class Renderer:
    """Renders the payloads of one case; no method raises.

    The work for all payloads together is limited. After that, only lengths are rendered.
    """

    def __init__(self) -> None:
        self._len_left = _ALL_STREAMS_LEN_MAX

    def value(self, payloads: Payloads) -> str:
        """Return the text of a value: the body of a message, and its buffers."""
        return self._render(payloads, _Text.add)

    def arguments(self, payloads: Payloads) -> str:
        """Return the text of the arguments of a call, as they are written in a call."""
        return self._render(payloads, _add_arguments)

    def constructor_arguments(self, payloads: Payloads) -> str:
        """Return the text of the arguments of `__init__` in a spawn request."""
        return self._render(payloads, _add_constructor_arguments)

    def traceback(self, payloads: Payloads) -> str | None:
        """Return the lines of the traceback in an encoded exception, or None."""
        found = self._outline(payloads, TRACEBACK_LEN_MAX)
        if type(found) is tuple and found and type(found[0]) is str:
            lines = shorten(found[0], TRACEBACK_LEN_MAX).rstrip().split("\n")
            return "\n".join(map(escape, lines))
        return None

    def _render(self, payloads: Payloads, add: Any) -> str:
        found = self._outline(payloads)
        if found is not _UNKNOWN:
            text = _Text()
            try:
                add(text, found)
                return text.result()
            except (ValueError, TypeError, LookupError, RecursionError):
                pass
        return _describe(payloads)

    def _outline(self, payloads: Payloads, argument_len_max: int = _ARGUMENT_LEN_MAX) -> Any:
        stream: PickleStream | None = None
        try:
            parts, buffers = split_message(payloads)
            stream = PickleStream(parts, argument_len_max, min(_STREAM_LEN_MAX, self._len_left))
            return outline(stream, buffers)
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
            # The pickle is damaged, hostile or too large.
            return _UNKNOWN
        finally:
            if stream is not None:
                self._len_left -= stream.read_len


_UNKNOWN = object()


class _Text:
    """A text that grows up to a limit."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._left = VALUE_LEN_MAX

    def result(self) -> str:
        return "".join(self._pieces) + ("" if self._left > 0 else "...")

    def write(self, text: str) -> None:
        if self._left > 0:
            self._pieces.append(text[: self._left])
            self._left -= len(text)

    def add(self, value: Any, depth: int = 0) -> None:
        """Add the text of a value."""
        kind = type(value)
        if self._left <= 0:
            return
        if depth > _DEPTH_MAX:
            self.write("...")
        elif kind is tuple:
            self.add_items("(", value, ",)" if len(value) == 1 else ")", depth)
        elif kind is list:
            self.add_items("[", value, "]", depth)
        elif kind is Items:
            self._add_set(value, depth)
        elif kind is Pairs:
            self._add_pairs(value, depth)
        else:
            self.write(_atom(value))

    def add_items(self, opened: str, items: Iterable[Any], closed: str, depth: int) -> None:
        self.write(opened)
        for index, item in enumerate(items):
            if self._left <= 0:
                return
            self.write(", " if index else "")
            self.add(item, depth + 1)
        self.write(closed)

    def _add_set(self, items: Items, depth: int) -> None:
        if not items.items:
            self.write(f"{items.name}()")
        elif items.name == "set":
            self.add_items("{", items.items, "}", depth)
        else:
            self.add_items(f"{items.name}({{", items.items, "})", depth)

    def _add_pairs(self, pairs: Pairs, depth: int) -> None:
        self.write("{")
        for index, (key, value) in enumerate(pairs.items):
            if self._left <= 0:
                return
            self.write(", " if index else "")
            self.add(key, depth + 1)
            self.write(": ")
            self.add(value, depth + 1)
        self.write("}")


def _add_arguments(text: _Text, value: Any) -> None:
    if type(value) is not tuple or len(value) != 2:
        text.add(value)
        return
    args, kwargs = value
    if type(args) is not tuple or type(kwargs) is not Pairs:
        text.add(value)
        return
    text.add_items("", args, "", 0)
    for index, (name, one) in enumerate(kwargs.items):
        text.write(", " if index or args else "")
        text.write(f"{escape(name)}=" if type(name) is str else "?=")
        text.add(one, 1)


def _add_constructor_arguments(text: _Text, value: Any) -> None:
    # The state of an object with slots is a pair of its attributes without and with a slot.
    state = value.state if type(value) is Made else None
    slots = state[1] if type(state) is tuple and len(state) == 2 else None
    if type(slots) is not Pairs:
        text.add(value)
        return
    fields = {name: one for name, one in slots.items if type(name) is str}
    _add_arguments(text, (fields.get("args"), fields.get("kwargs")))


def _atom(value: Any) -> str:
    """Return the text of a value that contains no others, or of an object."""
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return repr(value)
    if kind is int:
        bits = value.bit_length()
        return repr(value) if bits <= _INT_BITS_MAX else f"<int, {bits} bits>"
    if kind is str:
        return escape(repr(shorten(value, _TEXT_LEN_MAX)))
    if kind is bytes:
        is_short = len(value) <= _TEXT_LEN_MAX
        return repr(value) if is_short else f"<bytes, {format_len(len(value))}>"
    if kind is Text:
        return f"<str, {format_len(value.length)}>"
    if kind is Bytes:
        return f"<bytes, {format_len(value.length)}>"
    if kind is Buffer:
        return _describe_payload(value.content)
    if kind is Named:
        return f"<{_name(value)}>"
    if kind is Made:
        return _describe_object(value)
    if kind is Elided:
        return f"<int, {format_len(value.length)}>"
    return "<?>"


def _describe_object(made: Made) -> str:
    name, shape = _name(made.maker), ""
    if name == _REDACTED:
        return "<redacted>"
    args = made.args if type(made.args) is tuple else ()
    if name in _SHAPED:
        name, position = _SHAPED[name]
        shape = _shape(args[position]) if len(args) > position else ""
    elif name in _CLASS_FIRST and args:
        name = _name(args[0])
    elif name == _CLASS_BY_VALUE:
        return "<class, pickled by value>"
    length = _nested_len((made.args, made.state, made.items))
    if length:
        return f"<{name}{shape}, {format_len(length)}>"
    has_content = bool(args or made.items) or made.state is not None
    return f"<{name}{' ...' if has_content and not shape else shape}>"


def _name(maker: Any) -> str:
    if type(maker) is Named:
        return escape(shorten(maker.name, _TEXT_LEN_MAX))
    if type(maker) is Made and _name_of_made(maker) == _CLASS_BY_VALUE:
        return "object of a class that is pickled by value"
    return "object"


def _name_of_made(made: Made) -> str:
    return made.maker.name if type(made.maker) is Named else ""


def _shape(value: Any) -> str:
    sizes = (value,) if type(value) is int else value
    if type(sizes) is not tuple or len(sizes) > 16 or any(type(size) is not int for size in sizes):
        return ""
    return shorten(f" [{', '.join(map(_atom, sizes))}]", _TEXT_LEN_MAX)


def _nested_len(root: Any) -> int:
    """Return the length of all buffers and long values in a value."""
    length = 0
    pending: list[Any] = [root]
    seen: set[int] = set()
    while pending and len(seen) < _SEARCHED_MAX:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kind = type(value)
        if kind is Buffer:
            content = value.content
            length += content.length if isinstance(content, Omitted) else len(content)
        elif kind in (Text, Bytes):
            length += value.length
        elif kind is Made:
            pending += (value.args, value.state, value.items)
        elif kind in (tuple, list):
            pending += value[:_SEARCHED_MAX]
        elif kind is Pairs:
            pending += [one for pair in value.items[:_SEARCHED_MAX] for one in pair]
        elif kind is Items:
            pending += value.items[:_SEARCHED_MAX]
    return length


def _describe(payloads: Payloads) -> str:
    """Return the length of payloads that cannot be rendered."""
    if len(payloads) == 1:
        return _describe_payload(payloads[0])
    lengths = (one.length if isinstance(one, Omitted) else len(one) for one in payloads)
    return f"<{format_len(sum(lengths))}>"


def _describe_payload(payload: bytes | Omitted) -> str:
    if isinstance(payload, Omitted):
        reason = "budget of the recording" if payload.reason == "budget" else payload.reason
        return f"<{format_len(payload.length)}, not recorded: {reason}>"
    return f"<{format_len(len(payload))}>"
