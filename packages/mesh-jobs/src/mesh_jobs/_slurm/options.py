"""The options of a SLURM job: what is requested from SLURM, and how workers run on the nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mesh_core import ConfigError
from mesh_jobs._slurm.array_indices import array_indices
from mesh_jobs._spec import check_words

__all__ = ["SlurmOptions", "SlurmWorkerOptions"]


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The options of a batch job, with the names and formats of `sbatch`.

        SlurmJob({"trainers": 4}, options=SlurmOptions(partition="gpu", account="lab"))

    Attributes:
        partition: The partition of the job. Defaults to that of the cluster.
        account: The account that is charged. Defaults to that of the user.
        qos: The quality of service. Defaults to that of the cluster.
        cpus_per_task: The number of CPUs per node. Defaults to that of the cluster.
        mem: The memory per node, such as `64G`. Defaults to that of the cluster.
        exclusive: Whether to allocate nodes that no other job shares.
        requeue: Whether SLURM may requeue the job when it is preempted or its nodes fail.
        array: The number of independent jobs to submit at once, or their indices: `0-15%4` runs at
            most four at a time. Each of them is a separate job in `SlurmJob.tasks`.
        warning_s: How many seconds before the time limit programs are notified by `on_leaving`; 0
            disables the notification.
        slurm_args: More options of `sbatch`, one string each, such as `--constraint=h100`.

    Raises:
        ConfigError: `array` is not a valid list of indices, or `slurm_args` is not a list.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    exclusive: bool = True
    requeue: bool = True
    array: int | str | None = None
    warning_s: int = 60
    slurm_args: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_words("slurm_args", self.slurm_args)
        if isinstance(self.array, int) and self.array < 1:
            raise ConfigError(f"array is {self.array}: give a number of tasks from 1 up")
        self.indices()

    def indices(self) -> list[int]:
        """Return the indices of the tasks of an array; empty without one."""
        array = self._array()
        return [] if array is None else array_indices(array)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the job's record."""
        return {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "cpus_per_task": self.cpus_per_task,
            "mem": self.mem,
            "exclusive": self.exclusive,
            "requeue": self.requeue,
            "array": self._array(),
            "warning_s": self.warning_s,
            "slurm_args": list(self.slurm_args),
        }

    def _array(self) -> str | None:
        return f"0-{self.array - 1}" if isinstance(self.array, int) else self.array


@dataclass(frozen=True, kw_only=True)
class SlurmWorkerOptions:
    """How the workers of a SLURM job run on their nodes.

        SlurmJob({"trainers": 4}, workers=SlurmWorkerOptions(setup=["module load cuda"]))

    Attributes:
        python: The Python interpreter on the nodes. Defaults to this program's.
        setup: Shell commands that the batch script runs before the workers, such as
            `module load cuda`.
        port: The port of the workers; 0 lets the system choose.
        advertise: The name under which others reach a node, or `env:SLURMD_NODENAME`. By default,
            each worker determines its address.
        log_dir: The folder for the output of the batch script and the workers. Defaults to the
            state folder of the job.
        replace_lost: Whether `state` replaces a lost node, by one more batch job.

    Raises:
        ConfigError: `setup` is not a list.
    """

    python: str | None = None
    setup: Sequence[str] = ()
    port: int = 0
    advertise: str | None = None
    log_dir: str | os.PathLike[str] | None = None
    replace_lost: bool = False

    def __post_init__(self) -> None:
        check_words("setup", self.setup)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the job's record."""
        return {
            "python": self.python,
            "setup": list(self.setup),
            "port": self.port,
            "advertise": self.advertise,
            # The path is absolute because nodes do not share this program's working directory.
            "log_dir": None if self.log_dir is None else os.path.abspath(self.log_dir),
            "replace_lost": self.replace_lost,
        }
