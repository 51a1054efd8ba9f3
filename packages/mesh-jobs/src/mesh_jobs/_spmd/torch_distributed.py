"""Set-up of `torch.distributed` in the processes of a mesh, for actors that use it."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from mesh_core import Actor, current_rank, endpoint
from mesh_core.spi import current_process
from mesh_jobs._spmd.rendezvous import MasterAddress, MasterReservation
from mesh_jobs._spmd.torch_variables import RankOfTorch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core import ProcMesh

__all__ = ["setup_torch_distributed"]


class TorchEnvironment(Actor):
    """Sets the variables of torchrun in its process."""

    def __init__(self) -> None:
        self._rank = current_rank().rank

    @endpoint
    def host(self) -> int:
        """Return the number of the host in the job."""
        return current_process.location().host

    @endpoint
    def set(self, master: MasterAddress, run_id: str, ranks: list[RankOfTorch]) -> None:
        """Set the variables."""
        rank = ranks[self._rank]
        os.environ.update(rank.variables(master.address, master.port, run_id))


def setup_torch_distributed(
    procs: ProcMesh, *, master_addr: str | None = None, master_port: int | None = None
) -> None:
    """Set the variables of torchrun in each process, so that actors can use `torch.distributed`.

    Afterwards an actor calls `torch.distributed.init_process_group("nccl")` without further
    arguments. The ranks of torch are those of the mesh. `MASTER_ADDR` is a name of the first host
    that all hosts can reach, and `MASTER_PORT` a port that is reserved there for rank 0.

    Args:
        procs: The processes.
        master_addr: The address of rank 0, if hosts cannot find it themselves.
        master_port: A free port of that address.

    Raises:
        ValueError: Only one of address and port is given.
        JobError: Some host cannot reach the first one.
        MeshError: A process has died.

    Example:
        >>> procs = hosts.spawn_procs({"gpus": 8})  # doctest: +SKIP
        >>> setup_torch_distributed(procs)  # doctest: +SKIP
    """
    if (master_addr is None) != (master_port is None):
        raise ValueError("pass both master_addr and master_port, or neither")
    flat = procs.flatten("rank")
    environments = flat.spawn("torch_environment", TorchEnvironment)
    ranks = _ranks(environments.host.call().get().values())
    if master_addr is None or master_port is None:
        first_of_hosts = [one.rank for one in ranks if one.local_rank == 0]
        master = MasterReservation(flat.slice(rank=first_of_hosts)).master
    else:
        master = MasterAddress(master_addr, master_port)
    environments.set.call(master, uuid.uuid4().hex, ranks).get()
    flat_actors: Any = environments
    flat_actors.stop().get()


def _ranks(hosts: Sequence[int]) -> list[RankOfTorch]:
    """Return the position of each rank, given the number of its host."""
    sizes = Counter(hosts)
    indexes = {host: index for index, host in enumerate(sizes)}
    seen: Counter[int] = Counter()
    ranks = []
    for rank, host in enumerate(hosts):
        local_rank = seen[host]
        seen[host] += 1
        ranks.append(
            RankOfTorch(rank, len(hosts), local_rank, sizes[host], indexes[host], len(sizes))
        )
    return ranks
