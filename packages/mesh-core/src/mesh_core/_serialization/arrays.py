"""Pickling of numpy arrays: memory in separate buffers, metadata in the message.

This module never imports numpy: its reducer is created when the first array is pickled.
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

# Type codes of numbers in native byte order, which one letter describes completely.
_NUMBERS = frozenset("?bBhHiIlLqQefdgFDG")


def array_reducers() -> dict[type, Reducer]:
    """Return the reducers for numpy's types; numpy must already be imported."""
    return {sys.modules["numpy"].ndarray: _reduce_array}


def _reduce_array(_pickler: Any, array: Any) -> Any:
    """Reduce an array of numbers; for other arrays, numpy's own reduction works, but is slower."""
    dtype = array.dtype
    code = dtype.char
    if code not in _NUMBERS or not dtype.isnative or array.nbytes == 0:
        return NotImplemented
    # The array class itself is the constructor, so no function of Mesh needs to import numpy there.
    flags = array.flags
    if flags.c_contiguous:
        return type(array), (array.shape, code, PickleBuffer(array))
    if flags.f_contiguous:
        return type(array), (array.shape, code, PickleBuffer(array), 0, None, "F")
    return type(array), (array.shape, code, PickleBuffer(array.copy("C")))
