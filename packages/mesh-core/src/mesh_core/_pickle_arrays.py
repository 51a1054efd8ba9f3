"""How arrays and tensors travel: their memory beside the message, what describes it inside.

numpy and torch are never imported here; their reducers are made when one of their objects is met.
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


def _numpy_reducers() -> dict[type, Reducer]:
    return {sys.modules["numpy"].ndarray: _reduce_array}


def _reduce_array(_pickler: Any, array: Any) -> Any:
    dtype = array.dtype
    if dtype.isbuiltin != 1 or dtype.hasobject:
        return NotImplemented
    if not array.flags.forc:
        array = array.copy()
    if array.flags.c_contiguous:
        return _array, (PickleBuffer(array), dtype.char, array.shape)
    return _array, (PickleBuffer(array), dtype.char, array.shape, "F")


def _array(buffer: Any, code: str, shape: tuple[int, ...], order: str = "C") -> Any:
    import numpy

    return numpy.ndarray(shape, code, buffer, order=order)


array_reducers: dict[str, Callable[[], dict[type, Reducer]]] = {"numpy": _numpy_reducers}
