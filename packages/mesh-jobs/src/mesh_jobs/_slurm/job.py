"""Jobs on hosts from SLURM."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh_core import ConfigError
from mesh_jobs._job.job import Job, Progress
from mesh_jobs._job.lookup import job_load
from mesh_jobs._job.status import JobStatus
from mesh_jobs._slurm.job_array import array_indices, task_folder
from mesh_jobs._spec import MeshSpec

__all__ = ["SlurmJob"]


class SlurmJob(Job):
    """A job whose hosts are nodes of a SLURM cluster, allocated by one batch job for all meshes.

        job = SlurmJob({"trainers": 4}, partition="gpu", gpus_per_node=8, time_limit="4:00:00")
        hosts = job.state(timeout=600).trainers

    The program must run where SLURM's commands are available, in a folder that the nodes can also
    access. The loss of a node does not affect the others. If the batch job is requeued, for example
    after a preemption, it returns with new workers, and `state` finds them on their new nodes.

    If meshes request different resources, as after
    `add_mesh("servers", 2, cpus=4, partition="cpu")`, the batch job is heterogeneous. SLURM still
    grants it as a whole, but ends all of it when one node is lost.

    Args:
        meshes: The number of nodes of each mesh by name, or a `MeshSpec` for each mesh.
        python_exe: The Python interpreter on the nodes. Defaults to this program's.
        slurm_args: More options of `sbatch`, one string each, such as `--constraint=h100`.
        job_name: The name of the batch job, to which the id of the order is appended.
        time_limit: The time limit, in SLURM's format. Defaults to the partition's.
        partition: The partition of the job.
        log_dir: The folder for the output of the script and the workers. Defaults to the state
            folder of the job.
        exclusive: Whether to allocate nodes that no other job shares.
        gpus_per_node: The number of GPUs per node.
        cpus_per_task: The number of CPUs per node.
        mem: The memory per node, in SLURM's format, such as `64G`.
        job_start_timeout: The timeout of `state` in seconds if it is called without one.
        account: The account that is charged.
        qos: The quality of service.
        requeue: Whether SLURM may requeue the job when it is preempted or its nodes fail.
        replace_lost: Whether `state` replaces a lost node, by one more batch job.
        array: The number of independent jobs to submit at once, or their indices in the format of
            `sbatch`: `0-15%4` runs at most four at a time. Each of them is a separate job in
            `tasks`.
        warning_s: How many seconds before the time limit programs are notified by `on_leaving`.
        setup: Shell commands that the script runs before the workers, such as `module load cuda`.
        port: The port of the workers; 0 lets the system choose.
        advertise: The name under which others reach a node, or `env:SLURMD_NODENAME`. By default,
            each worker determines its address.
        ttl_s: The time in seconds for which the nodes are kept while no program uses them.
        context: The context under which the job is applied.
        folder: The folder that contains the state. Defaults to the current folder.

    Raises:
        ConfigError: A name or a number is invalid.
    """

    def __init__(
        self,
        meshes: Mapping[str, int] | Sequence[MeshSpec] = (),
        python_exe: str | None = None,
        slurm_args: Sequence[str] = (),
        job_name: str = "mesh",
        time_limit: str | int | None = None,
        partition: str | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        exclusive: bool = True,
        gpus_per_node: int | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        job_start_timeout: float | None = None,
        account: str | None = None,
        qos: str | None = None,
        *,
        requeue: bool = True,
        replace_lost: bool = False,
        array: int | str | None = None,
        warning_s: int = 60,
        setup: Sequence[str] = (),
        port: int = 0,
        advertise: str | None = None,
        ttl_s: float = 3600.0,
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(slurm_args, str) or isinstance(setup, str):
            raise ConfigError(
                "slurm_args and setup are lists of strings: put brackets around the value"
            )
        if isinstance(array, int):
            if array < 1:
                raise ConfigError(f"array is {array}: give a number of tasks from 1 up")
            array = f"0-{array - 1}"
        options = {
            "python_exe": python_exe,
            "slurm_args": list(slurm_args),
            "time_limit": None if time_limit is None else str(time_limit),
            "partition": partition,
            # The path is absolute because nodes do not share this program's working directory.
            "log_dir": None if log_dir is None else os.path.abspath(log_dir),
            "exclusive": exclusive,
            "gpus_per_node": gpus_per_node,
            "cpus_per_task": cpus_per_task,
            "mem": mem,
            "account": account,
            "qos": qos,
            "requeue": requeue,
            "replace_lost": replace_lost,
            "array": array,
            "warning_s": warning_s,
            "setup": list(setup),
            "port": port,
            "advertise": advertise,
        }
        self._indices = [] if array is None else array_indices(array)
        super().__init__(
            meshes,
            backend="slurm",
            name=job_name,
            options=options,
            ttl_s=ttl_s,
            context=context,
            folder=folder,
        )
        self._start_timeout = job_start_timeout

    @property
    def tasks(self) -> list[Job]:
        """The tasks of an applied array as separate jobs, without those that were killed.

        Task 3 of the context `sweep` has the context `sweep-3`, under which `job_load` finds it as
        well.
        """
        array = Path(self.folder)
        folders = (task_folder(array, index) for index in self._indices)
        known = (folder for folder in folders if (folder / "job.json").exists())
        return [job_load(one.name, folder=one.parent.parent) for one in known]

    def wait_up(self, timeout: float | None = None, progress: Progress | None = None) -> JobStatus:
        """Wait until all hosts are up; see `Job.wait_up`.

        Args:
            timeout: The timeout in seconds. Defaults to `job_start_timeout`.
            progress: A function that is called with the status whenever it changes.

        Raises:
            JobPending: The hosts were not up before the timeout; the message contains the
                scheduler's reason.
            JobEnded: The job or one of its hosts has ended; the error contains the last output of
                the worker.
            SchedulerUnreachable: The scheduler was not reachable until the timeout.
            JobMismatch: A different job is applied under this context.
            JobError: The scheduler rejects the job.
        """
        return super().wait_up(self._start_timeout if timeout is None else timeout, progress)
