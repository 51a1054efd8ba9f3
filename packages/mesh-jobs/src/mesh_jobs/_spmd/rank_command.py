"""The command of a script's rank, with the environment that torchrun would provide."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mesh_jobs._exec.rank_environment import rank_environment
from mesh_jobs._exec.supervised_process import Command
from mesh_jobs._spmd.script_environment import script_environment
from mesh_jobs._spmd.torch_variables import RankOfTorch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_core import Point
    from mesh_jobs._spmd.rendezvous import MasterAddress

__all__ = ["SpmdRequest"]

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
    """The same for all rounds."""
    restart_count: int = 0
    """The number of earlier rounds."""
    max_restarts: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None

    def command(self, place: Point) -> Command:
        """Return the command of one rank."""
        env = {
            **rank_environment(place, place.extent),
            **self._torch_environment(place),
            **self.env,
        }
        env |= script_environment(place.rank, env)
        argv = (sys.executable, "-u", *self.python_args)
        return Command(argv, env, self.workdir, _ERROR_FILE)

    def _torch_environment(self, place: Point) -> dict[str, str]:
        rank, size = place.rank, place.extent.nelements
        group, local = divmod(rank, self.per_host)
        of_torch = RankOfTorch(rank, size, local, self.per_host, group, size // self.per_host)
        variables = of_torch.variables(self.master.address, self.master.port, self.run_id)
        variables |= {
            "TORCHELASTIC_RESTART_COUNT": str(self.restart_count),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        }
        if self.per_host > 1:
            # Without this limit, each process would use all CPUs of the host.
            variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        return variables
