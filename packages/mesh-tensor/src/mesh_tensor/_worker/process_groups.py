"""Groups of processes under names that all their members agree on.

torch names a group that its members alone make by how many groups a process had before, and that is
not the same in all of them: one that is in more slices of a mesh has more. They would wait for each
other for ever. So groups are named by their members, and by which stream they are for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["new_group"]


class _Naming(threading.local):
    """The name that the next group of this thread gets."""

    name: str | None = None


_naming = _Naming()
_torch_name: Any = distributed_c10d._process_group_name


def _name(ranks: Any, use_hashed_name: bool) -> Any:
    if _naming.name is not None:
        return _naming.name
    return _torch_name(ranks, use_hashed_name)


def new_group(ranks: Sequence[int], lane: int) -> dist.ProcessGroup:
    """Makes a group; all of its members call this, and nobody else does.

    Args:
        ranks: The members.
        lane: The stream that it is for. There is one such group for each.
    """
    distributed_c10d._process_group_name = _name
    _naming.name = f"mesh_tensor.{lane}.{'_'.join(map(str, ranks))}"
    try:
        made = dist.new_group(list(ranks), use_local_synchronization=True)
    finally:
        _naming.name = None
    assert isinstance(made, dist.ProcessGroup)
    return made
