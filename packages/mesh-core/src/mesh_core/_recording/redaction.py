"""Removes the values of fields from encoded messages before they are recorded.

A field is a keyword argument, a positional argument by the name of its parameter, or the key of a
dict within tuples, lists and dicts. Values inside other objects and arrays are not found.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from fnmatch import fnmatchcase
from pickle import dumps

from mesh_core._cases.pickle_stream import split_message
from mesh_core._recording.pickle_places import parse
from mesh_core._recording.redacted import Redacted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from typing_extensions import Buffer

    from mesh_core._recording.pickle_places import Node, Opcode, Parsed

    # For each place to redact the name of the field.
    Fields = dict[tuple[int, int], str]
    Find = Callable[[Node, Fields], None]

__all__ = ["Redaction"]

_PROTOCOL = 5
_NAMES_MAX = 10_000
_LONG = 1_024
_EVERYTHING = "all arguments"
_WILD = re.compile(r"[*?\[\]]+")


class Redaction:
    """Redacts fields by their names, without regard to case.

    Args:
        patterns: Names of fields, or patterns such as `*token*`.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(pattern.lower() for pattern in patterns)
        self._known: dict[str, bool] = {}
        self._hint = _hint(self._patterns)

    def covers(self, name: str) -> bool:
        """Return whether a field is redacted."""
        found = self._known.get(name)
        if found is None:
            found = any(fnmatchcase(name.lower(), pattern) for pattern in self._patterns)
            if len(self._known) < _NAMES_MAX:
                self._known[name] = found
        return found

    def value(self, payloads: Sequence[Buffer]) -> list[Buffer]:
        """Return the payloads of a result without the values of redacted fields.

        Payloads without redacted fields are returned as they are.
        """
        return self._redacted(payloads, (), self._find)

    def arguments(self, payloads: Sequence[Buffer], parameters: Sequence[str]) -> list[Buffer]:
        """Return the payloads of a call without the values of redacted fields.

        Args:
            payloads: The body and its buffers.
            parameters: The names of the positional parameters.
        """

        def find(root: Node, fields: Fields) -> None:
            args, kwargs = root.items
            self._find_arguments(args.node, kwargs.node, parameters, fields)

        return self._redacted(payloads, parameters, find)

    def request(self, payloads: Sequence[Buffer], parameters: Sequence[str]) -> list[Buffer]:
        """Return the payloads of a spawn request without the values of redacted fields.

        Args:
            payloads: The body and its buffers.
            parameters: The names of the positional parameters of `__init__`.
        """

        def find(root: Node, fields: Fields) -> None:
            # The state of an object with slots: its attributes without and with a slot.
            if root.state is None:
                raise ValueError("not a spawn request")
            slots = root.state.node.items[1].node.pairs
            parts = {key.node.text: value.node for key, value in slots}
            self._find_arguments(parts["args"], parts["kwargs"], parameters, fields)

        return self._redacted(payloads, parameters, find)

    def _redacted(
        self, payloads: Sequence[Buffer], parameters: Sequence[str], find: Find
    ) -> list[Buffer]:
        try:
            views: Any = [memoryview(one).cast("B") for one in payloads]
            pieces: Any
            pieces, buffers = split_message(views)
            if not self._may_contain(pieces) and not any(map(self.covers, parameters)):
                return list(payloads)
            parsed = parse(b"".join(pieces))
            fields: Fields = {}
            find(parsed.root, fields)
            return _rewritten(parsed, fields, buffers) if fields else list(payloads)
        except Exception:
            # A value must not be recorded because it has a form that is not known here.
            return [dumps(Redacted(_EVERYTHING), _PROTOCOL)]

    def _may_contain(self, pieces: Sequence[bytes | memoryview]) -> bool:
        """Return whether a part of a field's name occurs in the pieces of a stream."""
        if self._hint is None:
            return True
        before: bytes | memoryview = b""
        for piece in pieces:
            # A long string or bytes object, which follows its length, is not searched.
            is_value = len(piece) >= _LONG and bytes(before[-4:]) == len(piece).to_bytes(
                4, "little"
            )
            if not is_value and self._hint.search(piece):
                return True
            before = piece
        return False

    def _find_arguments(
        self, args: Node, kwargs: Node, parameters: Sequence[str], fields: Fields
    ) -> None:
        for index, place in enumerate(args.items):
            name = parameters[index] if index < len(parameters) else ""
            if name and self.covers(name):
                fields[place.start, place.end] = name
            else:
                self._find(place.node, fields)
        self._find(kwargs, fields)

    def _find(self, root: Node, fields: Fields) -> None:
        """Find the redacted values in nested containers."""
        pending = [root]
        seen: set[int] = set()
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            pending += (one.node for one in node.items)
            for key, value in node.pairs:
                if key.node.text is not None and self.covers(key.node.text):
                    fields[value.start, value.end] = key.node.text
                else:
                    pending.append(value.node)


def _hint(patterns: Sequence[str]) -> re.Pattern[bytes] | None:
    """Return a pattern that matches where a field may be; None if that can be anywhere."""
    longest = [max(_WILD.split(pattern), key=len) for pattern in patterns]
    if any(
        not one or not one.isascii() or "[" in pattern
        for one, pattern in zip(longest, patterns, strict=True)
    ):
        return None
    return re.compile(b"|".join(re.escape(one.encode()) for one in longest), re.IGNORECASE)


def _rewritten(parsed: Parsed, fields: Fields, buffers: Sequence[Any]) -> list[Buffer]:
    """Return the payloads with markers in the places of fields."""
    places = _outermost(fields)
    inside = _inside(parsed.opcodes, places)
    needed = _inside(parsed.opcodes, _needed(parsed, inside))
    out = bytearray()
    kept: list[Buffer] = []
    left = iter(buffers)
    ahead = [*zip(inside[1:], needed[1:], strict=True), (None, None)]
    for one, place, need, following in zip(parsed.opcodes, inside, needed, ahead, strict=True):
        buffer = next(left) if one.name == "NEXT_BUFFER" else None
        code = b"" if one.name == "FRAME" else parsed.stream[one.start : one.end]
        if place is None or need is not None:
            out += code
            if buffer is not None:
                kept.append(buffer)
        elif one.node is not None:
            # Later opcodes refer to values in the memo by number, so each number remains in use.
            out += b"N" + code + b"0"
        if need is not None and need != following[1]:
            out += b"0"
        if place is not None and place != following[0]:
            out += _marker(fields[place])
    return [bytes(out), *kept]


def _needed(parsed: Parsed, inside: Sequence[tuple[int, int] | None]) -> list[tuple[int, int]]:
    """Return the places of values inside of redacted ones that are also used elsewhere.

    For example, a class is written where it is needed first, and later referred to.
    """
    made = {
        one.slot: one.node
        for one, place in zip(parsed.opcodes, inside, strict=True)
        if one.node is not None and place is not None
    }
    starts = [one.start for one in parsed.opcodes]
    reads = zip(parsed.opcodes, inside, strict=True)
    pending = [one.slot for one, place in reads if one.node is None and place is None]
    found: dict[tuple[int, int], str] = {}
    while pending:
        node = made.pop(pending.pop(), None)
        if node is not None:
            found[node.start, node.end] = ""
            within = slice(bisect_left(starts, node.start), bisect_left(starts, node.end))
            pending += (one.slot for one in parsed.opcodes[within] if one.node is None)
    return _outermost(found)


def _outermost(fields: Fields) -> list[tuple[int, int]]:
    """Return the places that are not inside of others, in their order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(fields, key=lambda place: (place[0], -place[1])):
        if not found or start >= found[-1][1]:
            found.append((start, end))
    return found


def _inside(
    opcodes: Sequence[Opcode], places: Sequence[tuple[int, int]]
) -> list[tuple[int, int] | None]:
    """Return for each opcode the place that contains it, or None."""
    starts = [start for start, _ in places]
    found: list[tuple[int, int] | None] = []
    for one in opcodes:
        at = bisect_right(starts, one.start) - 1
        found.append(places[at] if at >= 0 and one.start < places[at][1] else None)
    return found


def _text(text: str) -> bytes:
    encoded = text.encode(errors="surrogatepass")
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _marker(field: str) -> bytes:
    """Return the opcodes that create a marker."""
    made = _text(Redacted.__module__) + _text(Redacted.__qualname__) + b"\x93"
    return made + _text(field) + b"\x85R"
