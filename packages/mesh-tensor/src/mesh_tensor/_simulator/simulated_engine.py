"""The parts of an engine that differ in a simulation: device labels, and known results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Collection

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._instructions.compiled_op_cache import CacheEntry

__all__ = ["Simulated"]

_HOST = torch.device("cpu")
#: The device that PyTorch sees instead of a simulated one: it needs no driver, and nothing is ever
#: computed on it. If PyTorch itself names `meta`, it means the simulated device.
_NOWHERE = torch.device("meta")


class Simulated:
    """The simulation, as the engine sees it.

    Args:
        device: The device of each process, in addition to the CPU of its host.
        types: All available types of devices.
    """

    def __init__(self, device: torch.device, types: Collection[str]) -> None:
        self.device = device
        self._types = types
        #: Compiled ops that have not been executed yet, and the description of their results.
        self.pending: dict[int, tuple[CompiledOp, CacheEntry]] = {}

    def add(self, compiled_op: CompiledOp, entry: CacheEntry) -> None:
        """Record a new compiled op."""
        self.pending[compiled_op.opcode] = compiled_op, entry

    def visible_device_of(self, device: torch.device) -> torch.device:
        """Return the device that PyTorch sees for the tensors of a device.

        Raises:
            ValueError: The device does not exist.
        """
        if device.type not in self._types:
            known = ", ".join(self._types)
            raise ValueError(
                f"the cost model has no device {str(device)!r}, only {known}: add it to its devices"
            )
        return device if device == _HOST else _NOWHERE

    def labelled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace the device that PyTorch sees by the label in the arguments of an operation."""

        def meant(one: Any) -> Any:
            return self.device if isinstance(one, torch.device) and one == _NOWHERE else one

        made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(meant, (args, kwargs))
        return made
