"""The Arrow Flight SQL messages that a query server needs, in protobuf encoding."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Fields", "field_bytes", "message_of", "packed", "texts", "unpacked"]

_PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Fields = dict[int, list[bytes | int]]


def unpacked(message: bytes) -> tuple[str, Fields]:
    """Return the name and the fields of a command.

    Raises:
        ValueError: It is not a command of Flight SQL.
    """
    outer = _fields(message)
    kind = field_bytes(outer, 1).decode()
    if not kind.startswith(_PREFIX):
        raise ValueError("not a Flight SQL command: use a Flight SQL client")
    return kind.removeprefix(_PREFIX), _fields(field_bytes(outer, 2))


def packed(name: str, fields: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode a message of Flight SQL in an envelope with its name."""
    return message_of([(1, f"{_PREFIX}{name}".encode()), (2, message_of(fields))])


def message_of(fields: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode a message from fields of bytes or text, by their numbers."""
    return b"".join(_field(number, value) for number, value in fields)


def field_bytes(fields: Fields, number: int) -> bytes:
    """Return a field of bytes or text; empty if it is missing."""
    value = fields.get(number, [b""])[-1]
    return value if isinstance(value, bytes) else b""


def texts(fields: Fields, number: int) -> list[str]:
    """Return all values of a repeated text field."""
    return [each.decode() for each in fields.get(number, []) if isinstance(each, bytes)]


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: bytes) -> Fields:
    fields: Fields = {}
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        value: bytes | int
        if key & 7 == _VARINT:
            value, at = _read_varint(message, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(key & 7)
            if key & 7 == _BYTES:
                size, at = _read_varint(message, at)
            if size is None or at + size > len(message):
                raise ValueError("malformed message: use a Flight SQL client")
            value = message[at : at + size]
            at += size
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("malformed message: use a Flight SQL client")
