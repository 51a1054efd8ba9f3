"""How numpy arrays travel: their memory beside the message, what describes it inside.

numpy is never imported here: its reducer is made when one of its arrays is met.
"""

from __future__ import annotations

import sys
from _pickle import PickleBuffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reducer = Callable[[Any, Any], Any]

__all__ = ["array_reducers"]

# Numbers in the machine's own order: what one letter describes.
_NUMBERS = frozenset("?bBhHiIlLqQefdgFDG")


def array_reducers() -> dict[type, Reducer]:
    """Gives the reducers for numpy's types, which must be imported already."""
    return {sys.modules["numpy"].ndarray: _reduce_array}


def _reduce_array(_pickler: Any, array: Any) -> Any:
    """Reduces an array of numbers; numpy's own way for the others is as good, if slower."""
    dtype = array.dtype
    code = dtype.char
    if code not in _NUMBERS or not dtype.isnative or array.nbytes == 0:
        return NotImplemented
    # The class itself makes it again, so nothing of ours needs numpy there.
    flags = array.flags
    if flags.c_contiguous:
        return type(array), (array.shape, code, PickleBuffer(array))
    if flags.f_contiguous:
        return type(array), (array.shape, code, PickleBuffer(array), 0, None, "F")
    return type(array), (array.shape, code, PickleBuffer(array.copy("C")))
