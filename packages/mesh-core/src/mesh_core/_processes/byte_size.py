"""Sizes in bytes as text."""

import re

__all__ = ["byte_size_text", "parse_memory_limit"]

_MIB, _GIB = 1 << 20, 1 << 30
_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": _MIB,
    "gib": _GIB,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
# An interpreter alone has about this size. A smaller limit is a missing unit, as in 8 for 8 GiB.
_LIMIT_BYTES_MIN = 16 * _MIB
_LIMIT_BYTES_MAX = 1 << 60


def parse_memory_limit(limit: int | str) -> int:
    """Return the bytes of a memory limit.

    Args:
        limit: Bytes, or a number with a unit, such as `"8GiB"` or `"512 MB"`. Units from KiB to TiB
            are powers of 1024, and units from KB to TB are powers of 1000.

    Raises:
        ValueError: It is not a size, or outside of 16 MiB to 1 EiB.
    """
    size = _bytes_of(limit)
    if size is None:
        raise ValueError(
            f"memory_limit {limit!r} is not a size: give bytes as an int, or a number with a unit, "
            'such as "8GiB" or "512MiB"'
        )
    if not _LIMIT_BYTES_MIN <= size <= _LIMIT_BYTES_MAX:
        raise ValueError(
            f"memory_limit {limit!r} is {size} bytes: give 16 MiB to 1 EiB for each process, "
            'with a unit if it is text, such as "8GiB"'
        )
    return size


def _bytes_of(limit: object) -> int | None:
    if isinstance(limit, int):
        return None if isinstance(limit, bool) else limit
    found = _SIZE.fullmatch(limit) if isinstance(limit, str) else None
    unit = None if found is None else _UNITS.get(found[2].lower())
    return None if found is None or unit is None else int(float(found[1]) * unit)


def byte_size_text(count: int) -> str:
    """Return a size as readable text, such as `1.5 GiB` or `200 MiB`."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"
