"""The opcodes of a message, read without decoding it and with bounded memory.

`pickletools.genops` copies every argument, however long it is. This reader uses the tables of
`pickletools`, but skips long arguments, so a message with gigabytes costs as little as its opcodes.
"""

from __future__ import annotations

import pickletools
from io import BytesIO
from typing import NamedTuple

from mesh_core._cases.case import Omitted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

__all__ = ["Elided", "Opcode", "PickleStream", "read_opcodes", "split_message"]

_SPLICED = 0
_OPCODES = {one.code: one for one in pickletools.opcodes}
_PIECES_MAX = 1_024
_LENGTH_SIZES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
# Python's decoder of this opcode reports invalid escapes as warnings, and protocol 5 has others.
_REFUSED = frozenset({"STRING"})


class Elided(NamedTuple):
    """An argument that was skipped.

    Attributes:
        length: Its length in bytes.
    """

    length: int


class Opcode(NamedTuple):
    """An opcode and its argument, which is None if the opcode has none."""

    name: str
    argument: Any


class PickleStream:
    """A stream of several parts, some of them possibly unknown; a file for `pickletools`.

    Args:
        parts: The parts of the stream.
        argument_len_max: Longer arguments of opcodes are skipped.
        len_max: Maximum number of bytes to read, not counting skipped bytes.
    """

    def __init__(
        self,
        parts: Sequence[bytes | memoryview | Omitted],
        argument_len_max: int,
        len_max: int,
    ) -> None:
        self.argument_len_max = argument_len_max
        self.read_len = 0
        self._len_max = len_max
        self._parts = [
            part if isinstance(part, Omitted) else memoryview(part) for part in parts if _len(part)
        ]
        self._at = 0
        self._offset = 0

    def read(self, length: int) -> bytes:
        """Return the next bytes, fewer at the end.

        Raises:
            ValueError: The bytes are unknown, or more than the limit.
        """
        if not 0 <= length <= self._len_max - self.read_len:
            raise ValueError("the stream is too long")
        self.read_len += length
        pieces: list[bytes] = []
        while length and self._at < len(self._parts):
            part = self._parts[self._at]
            if isinstance(part, Omitted):
                raise ValueError("a part of the stream is unknown")
            piece = part[self._offset : self._offset + length]
            pieces.append(bytes(piece))
            length -= len(piece)
            self._advance(len(piece))
        return b"".join(pieces)

    def readline(self) -> bytes:
        """Return the bytes up to the next line feed."""
        line = bytearray()
        while len(line) < self.argument_len_max and (one := self.read(1)):
            line += one
            if one == b"\n":
                return bytes(line)
        raise ValueError("a line has no end")

    def skip(self, length: int) -> None:
        """Skip bytes, known or not.

        Raises:
            ValueError: The stream ends before.
        """
        while length:
            if self._at >= len(self._parts):
                raise ValueError("the stream ends too early")
            step = min(length, _len(self._parts[self._at]) - self._offset)
            self._advance(step)
            length -= step

    def is_known(self, length: int) -> bool:
        """Return whether the next bytes are known."""
        at, length = self._at, length + self._offset
        while length > 0 and at < len(self._parts):
            if isinstance(self._parts[at], Omitted):
                return False
            length -= _len(self._parts[at])
            at += 1
        return True

    def _advance(self, length: int) -> None:
        self._offset += length
        if self._offset >= _len(self._parts[self._at]):
            self._at, self._offset = self._at + 1, 0


def split_message(
    payloads: Sequence[bytes | Omitted],
) -> tuple[list[bytes | memoryview | Omitted], list[bytes | Omitted]]:
    """Return the parts of the stream of a message, and the buffers that it refers to.

    Args:
        payloads: The body, in either of the forms of `_serialization/pickler.py`, and its buffers.

    Raises:
        ValueError: The body is unknown or has neither form.
    """
    body, *buffers = payloads
    if isinstance(body, Omitted) or not body:
        raise ValueError("the body is unknown")
    if body[0] != _SPLICED:
        return [body], buffers
    count = int.from_bytes(body[1:5], "little")
    rest = 5 + 8 * count
    if count > min(len(buffers), _PIECES_MAX) or len(body) < rest:
        raise ValueError("the body does not match its buffers")
    parts: list[bytes | memoryview | Omitted] = []
    view = memoryview(body)
    for at, piece in zip(range(5, rest, 8), buffers, strict=False):
        length = int.from_bytes(body[at : at + 8], "little")
        parts += (view[rest : rest + length], piece)
        rest += length
    return [*parts, view[rest:]], buffers[count:]


def read_opcodes(stream: PickleStream) -> Iterator[Opcode]:
    """Yield the opcodes of a stream up to STOP; an argument that is long or unknown is `Elided`.

    Raises:
        ValueError: The stream is not a pickle.
    """
    while True:
        code = stream.read(1).decode("latin-1")
        kind = _OPCODES.get(code)
        if kind is None or kind.name in _REFUSED:
            raise ValueError("not a pickle")
        yield Opcode(kind.name, None if kind.arg is None else _read_argument(stream, kind.arg))
        if kind.name == "STOP":
            return


def _read_argument(stream: PickleStream, kind: pickletools.ArgumentDescriptor) -> Any:
    size = _LENGTH_SIZES.get(kind.n)
    if size is None:
        return kind.reader(stream)  # type: ignore[arg-type]
    head = stream.read(size)
    length = int.from_bytes(head, "little")
    if length > stream.argument_len_max or not stream.is_known(length):
        stream.skip(length)
        return Elided(length)
    return kind.reader(BytesIO(head + stream.read(length)))


def _len(part: bytes | memoryview | Omitted) -> int:
    return part.length if isinstance(part, Omitted) else len(part)
