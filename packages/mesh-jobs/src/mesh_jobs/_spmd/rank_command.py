"""The command of a script's rank, with the environment that torchrun would provide."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mesh_jobs._exec.rank_environment import rank_environment
from mesh_jobs._exec.supervised_process import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_core import Point
    from mesh_jobs._spmd.rendezvous import MasterAddress

__all__ = ["SpmdRequest"]

_ROLE = "default"
#: The path to which `torch.distributed.elastic.multiprocessing.errors.record` writes the traceback.
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


@dataclass(frozen=True, slots=True)
class SpmdRequest:
    """The same script for all ranks."""

    python_args: tuple[str, ...]
    """The script or module and its arguments, as on the command line of `python`."""
    per_host: int
    master: MasterAddress
    run_id: str
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None

    def command(self, place: Point) -> Command:
        """Return the command of one rank."""
        env = {
            **rank_environment(place, place.extent),
            **self._torch_environment(place),
            **self.env,
        }
        argv = (sys.executable, "-u", *self.python_args)
        return Command(argv, env, self.workdir, _ERROR_FILE)

    def _torch_environment(self, place: Point) -> dict[str, str]:
        rank, size = place.rank, place.extent.nelements
        group, local = divmod(rank, self.per_host)
        variables = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "GROUP_RANK": group,
            "ROLE_RANK": rank,
            "ROLE_NAME": _ROLE,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": self.per_host,
            "GROUP_WORLD_SIZE": size // self.per_host,
            "ROLE_WORLD_SIZE": size,
            "MASTER_ADDR": self.master.address,
            "MASTER_PORT": self.master.port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_RUN_ID": self.run_id,
            # Rank 0 serves the store itself, because there is no agent.
            "TORCHELASTIC_USE_AGENT_STORE": False,
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1),
        }
        if self.per_host > 1:
            # Without this limit, each process would use all CPUs of the host.
            variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", 1)
        return {name: str(value) for name, value in variables.items()}
