"""Model sizes, in a module that does not import torch."""

from __future__ import annotations

from collections.abc import Mapping

#: By the approximate mean duration of an operation in microseconds: layer width, rows of a batch.
CASES: Mapping[int, tuple[int, int]] = {
    10: (72, 144),
    50: (152, 304),
    100: (192, 384),
    1000: (432, 864),
}
