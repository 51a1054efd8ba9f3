"""Encoder for the Perfetto trace format, limited to the messages that are needed.

The field numbers are defined in `perfetto/protos/perfetto/trace/perfetto_trace.proto`. Repeated
names are sent once and then referenced by number.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Value = bool | int | float | str

__all__ = ["PerfettoWriter"]

_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_STATE_CLEARED, _STATE_NEEDED = 1, 2
_SEQUENCE = 1
_BOOT_TIME, _REAL_TIME = 6, 1
# Names beyond this number are sent each time, because readers keep all numbered names in memory.
_NAMES_MAX = 10_000
_TEXT_LEN_MAX = 4096


class PerfettoWriter:
    """Writes a trace packet by packet; times are nanoseconds since the epoch.

    Packets of one track with equal times must be written in order; packets of different tracks may
    be written in any order.

    Args:
        write: Receives the bytes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._last_uuid = 0
        self._events: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._arguments: dict[str, int] = {}
        self._is_begun = False

    def begin(self, time_ns: int) -> None:
        """Declare that timestamps are wall-clock times."""
        clocks = b"".join(
            _message(1, _number(1, clock) + _number(2, time_ns))
            for clock in (_BOOT_TIME, _REAL_TIME)
        )
        self._packet(_number(8, time_ns) + _message(6, clocks))

    def process(self, pid: int, name: str) -> int:
        """Create the track of a process; `pid` must be unique."""
        uuid = self._new_uuid()
        process = _number(1, pid) + _text(6, name)
        self._packet(_message(60, _number(1, uuid) + _message(3, process)))
        return uuid

    def thread(self, pid: int, tid: int, name: str) -> int:
        """Create a track that is shown as a thread; `tid` must be unique."""
        uuid = self._new_uuid()
        thread = _number(1, pid) + _number(2, tid) + _text(5, name)
        self._packet(_message(60, _number(1, uuid) + _message(4, thread)))
        return uuid

    def track(self, parent: int, name: str) -> int:
        """Create another track of a process, or of the whole trace if `parent` is 0."""
        uuid = self._new_uuid()
        named = _number(1, uuid) + _text(2, name)
        self._packet(_message(60, named + (_number(5, parent) if parent else b"")))
        return uuid

    def counter(self, parent: int, name: str, unit: str = "") -> int:
        """Create a counter track of a process."""
        uuid = self._new_uuid()
        counter = _text(6, unit) if unit else b""
        named = _number(1, uuid) + _text(2, name) + _number(5, parent)
        self._packet(_message(60, named + _message(8, counter)))
        return uuid

    def open(
        self,
        track: int,
        time_ns: int,
        name: str,
        category: str,
        arguments: Mapping[str, Value],
        flow: int | None = None,
    ) -> None:
        """Begin a slice, which ends with the matching `close` of its track."""
        self._event(_SLICE_BEGIN, track, time_ns, name, category, arguments, flow, is_last=False)

    def close(self, track: int, time_ns: int, arguments: Mapping[str, Value]) -> None:
        """End the most recently opened slice of a track."""
        self._event(_SLICE_END, track, time_ns, None, None, arguments, None, is_last=False)

    def instant(
        self,
        track: int,
        time_ns: int,
        name: str,
        category: str,
        arguments: Mapping[str, Value],
        flow: int | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        """Write an instant event.

        Arrows connect the slices and events of a `flow`, until one with `is_last`.
        """
        self._event(_INSTANT, track, time_ns, name, category, arguments, flow, is_last=is_last)

    def count(self, track: int, time_ns: int, value: float) -> None:
        """Set the value of a counter from this time on."""
        body = _number(9, _COUNTER) + _number(11, track)
        body += _signed(30, value) if isinstance(value, int) else _double(44, value)
        self._packet(_number(8, time_ns) + _message(11, body))

    def _event(
        self,
        kind: int,
        track: int,
        time_ns: int,
        name: str | None,
        category: str | None,
        arguments: Mapping[str, Value],
        flow: int | None,
        *,
        is_last: bool,
    ) -> None:
        new: list[bytes] = []
        parts = [_number(9, kind), _number(11, track)]
        if category is not None:
            parts.append(_named(self._categories, category, 1, new, by_number=3, by_text=22))
        if name is not None:
            parts.append(_named(self._events, name, 2, new, by_number=10, by_text=23))
        for key, value in arguments.items():
            called = _named(self._arguments, key, 3, new, by_number=1, by_text=10)
            parts.append(_message(4, called + _value(value)))
        if flow is not None:
            parts.append(_key(48 if is_last else 47, 1) + struct.pack("<Q", flow))
        body = _number(8, time_ns) + _message(11, b"".join(parts))
        if new:
            body += _message(12, b"".join(new))
        self._packet(body)

    def _packet(self, body: bytes) -> None:
        flags = _STATE_NEEDED if self._is_begun else _STATE_NEEDED | _STATE_CLEARED
        self._is_begun = True
        self._write(_message(1, body + _number(10, _SEQUENCE) + _number(13, flags)))

    def _new_uuid(self) -> int:
        self._last_uuid += 1
        return self._last_uuid


def _named(
    known: dict[str, int], text: str, field: int, new: list[bytes], by_number: int, by_text: int
) -> bytes:
    """Refer to a name by its number; an unknown name is added to `new`."""
    number = known.get(text)
    if number is None:
        if len(known) >= _NAMES_MAX:
            return _text(by_text, text)
        number = known[text] = len(known) + 1
        new.append(_message(field, _number(1, number) + _text(2, text)))
    return _number(by_number, number)


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return _number(2, int(value))
    if isinstance(value, int):
        is_signed = -(1 << 63) <= value < 1 << 63
        return _signed(4, value) if is_signed else _text(6, str(value))
    if isinstance(value, float):
        return _double(5, value)
    return _text(6, value)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _BYTES[value]
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _number(field: int, value: int) -> bytes:
    return _KEYS[field] + _varint(value)


def _signed(field: int, value: int) -> bytes:
    return _KEYS[field] + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _message(field: int, body: bytes) -> bytes:
    return _key(field, 2) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _message(field, text[:_TEXT_LEN_MAX].encode("utf-8", "replace"))


_BYTES = [bytes((value,)) for value in range(0x80)]
#: For fields that contain a number.
_KEYS = [_key(field, 0) for field in range(64)]
