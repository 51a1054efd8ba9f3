"""Process groups with names on which all of their members agree.

If only the members create a group, PyTorch names it by the number of groups that the process had
before. This number can differ between the members, because some are in more slices of a mesh than
others, and they would then wait for each other forever. Groups are therefore named by their members
and their stream.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["new_group"]


class _NextGroup(threading.local):
    """The name of the next group that this thread creates."""

    name: str | None = None


_next_group = _NextGroup()
_torch_name: Any = distributed_c10d._process_group_name


def _name(ranks: Any, use_hashed_name: bool) -> Any:
    if _next_group.name is not None:
        return _next_group.name
    return _torch_name(ranks, use_hashed_name)


def new_group(ranks: Sequence[int], stream_number: int) -> dist.ProcessGroup:
    """Create a group. All members call this function, and no other processes.

    Args:
        ranks: The members.
        stream_number: The number of the stream. Each stream has a separate group.
    """
    distributed_c10d._process_group_name = _name
    _next_group.name = f"mesh_tensor.{stream_number}.{'_'.join(map(str, ranks))}"
    try:
        made = dist.new_group(list(ranks), use_local_synchronization=True)
    finally:
        _next_group.name = None
    assert isinstance(made, dist.ProcessGroup)
    return made
