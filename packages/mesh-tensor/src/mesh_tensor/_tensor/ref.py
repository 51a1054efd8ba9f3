"""Values in the processes, as this program holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_tensor._streams.borrow import Share

__all__ = ["Ref"]


class Ref:
    """A slot that holds a value in each process for as long as this lives."""

    __slots__ = ("_freed", "base", "share", "slot")

    #: Of a value that was ever borrowed, or is: set then, and missing until.
    share: Share

    def __init__(self, slot: int, freed: list[int], base: Ref | None = None) -> None:
        self.slot = slot
        self._freed = freed
        #: The value whose storage it has, if that is another one.
        self.base = base

    def __del__(self) -> None:
        self._freed.append(self.slot)
