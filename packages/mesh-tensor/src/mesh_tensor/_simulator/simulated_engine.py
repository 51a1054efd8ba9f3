"""What an engine without processes does otherwise: devices that are labels, results told of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Collection

    from mesh_tensor._engine.plan import Plan
    from mesh_tensor._engine.plan_cache import Issue

__all__ = ["Simulated"]

_HOST = torch.device("cpu")
#: Where torch believes tensors to be of devices that are not there: nothing is ever computed
#: there, and it needs no driver. So where torch itself says `meta`, the device is meant.
_NOWHERE = torch.device("meta")


class Simulated:
    """What an engine is told where its processes are simulated.

    Args:
        device: The device that each process has beside its host's processors.
        types: All types of devices that there are.
    """

    def __init__(self, device: torch.device, types: Collection[str]) -> None:
        self.device = device
        self._types = types
        #: Plans that nothing was done with yet, and what the program knows of their results.
        self.news: dict[int, tuple[Plan, Issue]] = {}

    def note(self, plan: Plan, issue: Issue) -> None:
        """Hears of a plan."""
        self.news[plan.number] = plan, issue

    def shell_of(self, device: torch.device) -> torch.device:
        """Says where torch is to believe the tensors of a device.

        Raises:
            ValueError: There is no such device.
        """
        if device.type not in self._types:
            known = ", ".join(self._types)
            raise ValueError(
                f"nothing is known of a device {str(device)!r}, only of {known}: add it to the "
                "devices of the cost model"
            )
        return device if device == _HOST else _NOWHERE

    def labelled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Gives arguments with the device where torch itself has named its stand-in."""

        def meant(one: Any) -> Any:
            return self.device if isinstance(one, torch.device) and one == _NOWHERE else one

        made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(meant, (args, kwargs))
        return made
