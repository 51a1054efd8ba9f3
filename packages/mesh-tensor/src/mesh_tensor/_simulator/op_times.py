"""Measured durations of operations on a real device, for simulations of many such devices."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

__all__ = ["OpTimes", "op_key"]

#: Identifies an operation, the device, and the shape and dtype of each operand.
Key = tuple[str, str, tuple[tuple[tuple[int, ...], str], ...]]


def op_key(name: str, device: str, operands: Iterable[tuple[Sequence[int], torch.dtype]]) -> Key:
    """Return the key of an operation's duration."""
    return name, device, tuple((tuple(shape), str(dtype)) for shape, dtype in operands)


class OpTimes:
    """Measures the duration of each operation in a `with` block, on local tensors.

    Run a few steps of the program on one device. The duration of a kind of operation is the median
    of its measurements. While measuring, each operation is synchronized.

    Example:
        >>> with OpTimes() as times:
        ...     for _ in range(5):
        ...         step(model, batch)
        >>> simulator = Simulator({"dp": 1000}, CostModel.h100().measured(times))
    """

    def __init__(self) -> None:
        self._times: dict[Key, list[float]] = {}
        self._modes: list[_Timing] = []

    def __enter__(self) -> Self:
        mode = _Timing(self._times)
        mode.__enter__()  # type: ignore[no-untyped-call]
        self._modes.append(mode)
        return self

    def __exit__(self, *_: object) -> None:
        self._modes.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def seconds(self, key: Key) -> float | None:
        """Return the duration of an operation in seconds, or None if it was not measured."""
        found = self._times.get(key)
        return None if found is None else statistics.median(found)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the measurements as JSON.

        Raises:
            OSError: The file cannot be written.
        """
        rows = [[*key, statistics.median(times)] for key, times in self._times.items()]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(rows, file)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read measurements that `save` has written.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file has another format.
        """
        made = cls()
        with open(path, encoding="utf-8") as file:
            for name, device, operands, took_s in json.load(file):
                shapes = tuple((tuple(shape), dtype) for shape, dtype in operands)
                made._times[name, device, shapes] = [float(took_s)]
        return made


class _Timing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Measures the duration of each operation in this thread."""

    def __init__(self, times: dict[Key, list[float]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._times = times

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = _tensors((args, kwargs))
        _wait(given)
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        made = _tensors(result)
        _wait(made)
        took_s = time.perf_counter() - began
        device = next((t.device.type for t in (*given, *made) if t.device.type != "cpu"), "cpu")
        key = op_key(str(func), device, ((t.shape, t.dtype) for t in given))
        self._times.setdefault(key, []).append(took_s)
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(tree) if isinstance(one, torch.Tensor)]


def _wait(tensors: Sequence[torch.Tensor]) -> None:
    for kind in {one.device.type for one in tensors} - {"cpu", "meta"}:
        torch.get_device_module(kind).synchronize()
