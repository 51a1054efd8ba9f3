"""The environment variables that torchrun sets for each rank."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["RankOfTorch"]

_ROLE = "default"


class RankOfTorch(NamedTuple):
    """The position of a rank among all ranks and among those of its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: int
    """The index of its host."""
    hosts: int
    """The number of hosts."""

    def variables(self, master_addr: str, master_port: int, run_id: str) -> dict[str, str]:
        """Return the variables, except those that only scripts of torchrun use."""
        variables = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "GROUP_RANK": self.host,
            "ROLE_RANK": self.rank,
            "ROLE_NAME": _ROLE,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_WORLD_SIZE": self.hosts,
            "ROLE_WORLD_SIZE": self.size,
            "MASTER_ADDR": master_addr,
            "MASTER_PORT": master_port,
            "TORCHELASTIC_RUN_ID": run_id,
            # Rank 0 serves the store itself, because there is no agent.
            "TORCHELASTIC_USE_AGENT_STORE": False,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1),
        }
        return {name: str(value) for name, value in variables.items()}
