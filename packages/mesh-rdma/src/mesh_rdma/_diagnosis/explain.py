"""Reports which transport each process of a mesh uses for the memory of each other process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_core import Actor, current_rank, endpoint
from mesh_rdma._buffers.arena import allocate
from mesh_rdma._buffers.buffer import RDMABuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core import ProcMesh

__all__ = ["explain"]


class _Explainer(Actor):
    @endpoint
    def register(self) -> RDMABuffer:
        return RDMABuffer(allocate(1))

    @endpoint
    def explain(self, buffers: Sequence[RDMABuffer]) -> list[str]:
        me = current_rank().rank
        sections = []
        for rank, buffer in enumerate(buffers):
            if rank != me:
                paths = buffer.explain().replace("\n", "\n  ")
                sections.append(f"rank {me} from rank {rank}\n  {paths}")
        return sections


def explain(procs: ProcMesh) -> str:
    """Describe the selected transport for each pair of processes, and why others are not used.

    The description is for arena memory (see `allocate`). For other memory, use
    `RDMABuffer.explain`; to measure transports, use `doctor`.

    Raises:
        SupervisionError: A process died.
    """
    actors = procs.spawn("rdma_explain", _Explainer)
    try:
        buffers = list(actors.register.call().get().values())
        sections = actors.explain.call(buffers).get().values()
    finally:
        actors.stop().exception()
    return "\n".join(line for lines in sections for line in lines)
