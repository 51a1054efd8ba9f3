"""How large what is trained is: known where torch is not."""

from __future__ import annotations

from collections.abc import Mapping

#: By the microseconds that the mean operation takes, about: width of the layers, rows of a batch.
CASES: Mapping[int, tuple[int, int]] = {
    10: (72, 144),
    50: (152, 304),
    100: (192, 384),
    1000: (432, 864),
}
