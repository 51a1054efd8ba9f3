"""Hosts from SLURM."""

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
    """A job whose hosts are nodes of a SLURM cluster: one batch job for all meshes.

        job = SlurmJob({"trainers": 4}, partition="gpu", gpus_per_node=8, time_limit="4:00:00")
        hosts = job.state(timeout=600).trainers

    The program runs where SLURM's commands are, in a folder that the nodes see too. A node that is
    lost takes no other with it. A job that is put into the queue again, after a preemption say,
    comes back with new workers: `state` finds them wherever they are.

    Where meshes ask for unlike nodes, with `add_mesh("servers", 2, cpus=4, partition="cpu")`, the
    job is heterogeneous: still granted as a whole, but SLURM ends all of it with one lost node.

    Args:
        meshes: How many nodes each mesh has; or their specs, where nodes are not alike.
        python_exe: The Python on the nodes; the one of this program when left out.
        slurm_args: More options for `sbatch`, each as one word: `--constraint=h100`.
        job_name: What the job is called, with the order's id behind it.
        time_limit: How long it may run, in SLURM's words; what the partition says when left out.
        partition: Where it waits and runs.
        log_dir: Where the output of script and workers goes; in the job's state when left out.
        exclusive: Whether it shares its nodes with no other job.
        gpus_per_node: GPUs of each node.
        cpus_per_task: Processors of each node.
        mem: Memory of each node, in SLURM's words: `64G`.
        job_start_timeout: How long `state` waits when it is not told, in seconds.
        account: Who pays.
        qos: Which quality of service is asked for.
        requeue: Whether it may be put into the queue again when it is preempted or its nodes fail.
        replace_lost: Whether `state` gets another node in the place of one that is lost, by one
            more batch job.
        array: How many independent jobs to submit at once; or their indices, as `sbatch` has them:
            `0-15%4` lets four run at a time. Each is a job of its own, in `tasks`.
        warning_s: So many seconds before the time limit programs hear of it, by `on_leaving`.
        setup: Lines of shell that the script runs before the workers: `module load cuda`.
        port: The port of every worker; one that the system chooses when 0.
        advertise: What others call a node: a name, or `env:SLURMD_NODENAME`. When left out each
            worker finds out its own address.
        ttl_s: How long the nodes stay when no program uses them.
        context: Under what name it is applied.
        folder: In which folder the state is; the current one when left out.

    Raises:
        ConfigError: A name or a number is not one.
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
            raise ConfigError("slurm_args and setup are lists of texts: put brackets around it")
        if isinstance(array, int):
            if array < 1:
                raise ConfigError(f"array is {array}: give a number of tasks from 1 up")
            array = f"0-{array - 1}"
        options = {
            "python_exe": python_exe,
            "slurm_args": list(slurm_args),
            "time_limit": None if time_limit is None else str(time_limit),
            "partition": partition,
            # Nodes do not know what folder this program is in.
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
        """The tasks of an array that is applied, each a job of its own, without those killed.

        The task 3 of context `sweep` has the context `sweep-3`; there `job_load` finds it too.
        """
        array = Path(self.folder)
        folders = (task_folder(array, index) for index in self._indices)
        known = (folder for folder in folders if (folder / "job.json").exists())
        return [job_load(one.name, folder=one.parent.parent) for one in known]

    def wait_up(self, timeout: float | None = None, progress: Progress | None = None) -> JobStatus:
        """Waits until all hosts are up; see `Job.wait_up`.

        Args:
            timeout: For how many seconds to wait; `job_start_timeout` when left out.
            progress: Is called with the status whenever that has changed.

        Raises:
            JobPending: The hosts were not up in time; the message has the scheduler's reason.
            JobEnded: The job or a host of it has ended; with the last lines of its worker.
            SchedulerUnreachable: The scheduler could not be asked in all that time.
            JobMismatch: Something else is applied under this context.
            JobError: The scheduler refuses the job.
        """
        return super().wait_up(self._start_timeout if timeout is None else timeout, progress)
