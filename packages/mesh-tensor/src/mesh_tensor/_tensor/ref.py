"""References of this program to values in the processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_tensor._streams.borrow import StorageBorrows

__all__ = ["Ref"]


class Ref:
    """A slot with a value in each process; deleting the object frees the slot."""

    __slots__ = ("_freed", "base", "borrows", "slot")

    #: The borrows of the value. The attribute is not set until the value is borrowed for the first
    #: time, or is itself a borrowed one.
    borrows: StorageBorrows

    def __init__(self, slot: int, freed: list[int], base: Ref | None = None) -> None:
        self.slot = slot
        self._freed = freed
        #: The value whose storage this value shares, or None if it owns its storage.
        self.base = base

    def __del__(self) -> None:
        self._freed.append(self.slot)
