"""Options of a heap snapshot."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

__all__ = ["HeapOptions"]

_SECONDS_MAX = 300


@dataclass(frozen=True)
class HeapOptions:
    """Options of a heap snapshot.

    Attributes:
        seconds: The time for which allocations are tracked.
        is_peak: Show the allocations at the time of maximum memory use, instead of those left at
            the end.
        is_native: Include native frames in the flame graph.
        has_objects: Track each object that Python's own allocator serves, and not only the blocks
            that this allocator requests.
    """

    seconds: float
    is_peak: bool
    is_native: bool
    has_objects: bool

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= _SECONDS_MAX:
            raise ValueError(
                f"invalid duration of {self.seconds} seconds: use a value above 0 and up to"
                f" {_SECONDS_MAX}"
            )

    def words(self) -> str:
        """Return the options in the form that `parsed` accepts."""
        flags = (self.is_peak, self.is_native, self.has_objects)
        return " ".join([repr(float(self.seconds)), *(str(int(flag)) for flag in flags)])

    @classmethod
    def parsed(cls, words: str) -> Self:
        """Restore the options from the result of `words`.

        Raises:
            ValueError: The text has another form.
        """
        seconds, is_peak, is_native, has_objects = words.split()
        return cls(float(seconds), is_peak == "1", is_native == "1", has_objects == "1")
