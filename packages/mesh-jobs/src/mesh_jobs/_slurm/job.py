"""Jobs on hosts from SLURM."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh_jobs._job.job import Job, Progress
from mesh_jobs._job.lookup import job_load
from mesh_jobs._job.status import JobStatus
from mesh_jobs._slurm.job_array import task_folder
from mesh_jobs._slurm.options import SlurmOptions, SlurmWorkerOptions
from mesh_jobs._spec import MeshSpec

__all__ = ["SlurmJob"]


class SlurmJob(Job):
    """A job whose hosts are nodes of a SLURM cluster, allocated by one batch job for all meshes.

        gpu = SlurmOptions(partition="gpu")
        job = SlurmJob({"trainers": 4}, gpus_per_node=8, time_limit="4:00:00", options=gpu)
        hosts = job.state(timeout=600).trainers

    The program must run where SLURM's commands are available, in a folder that the nodes can also
    access. The loss of a node does not affect the others. If the batch job is requeued, for example
    after a preemption, it returns with new workers, and `state` finds them on their new nodes.

    If meshes request different resources, as after
    `add_mesh("servers", 2, cpus=4, partition="cpu")`, the batch job is heterogeneous. SLURM still
    grants it as a whole, but ends all of it when one node is lost.

    Args:
        meshes: The number of nodes of each mesh by name, or a `MeshSpec` for each mesh.
        name: The name of the batch job, to which the id of the allocation is appended.
        gpus_per_node: The number of GPUs per node.
        time_limit: The time limit, in SLURM's format. Defaults to the partition's.
        timeout: The timeout of `state` in seconds if it is called without one. Defaults to no
            limit.
        options: Other options of the batch job, such as the partition.
        workers: How the workers run on the nodes.
        ttl_s: The time in seconds for which the nodes are kept while no program uses them.
        context: The context under which the job is applied.
        folder: The folder that contains the state. Defaults to the current folder.

    Raises:
        ConfigError: A name or a number is invalid.
    """

    def __init__(
        self,
        meshes: Mapping[str, int] | Sequence[MeshSpec] = (),
        *,
        name: str = "mesh",
        gpus_per_node: int | None = None,
        time_limit: str | int | None = None,
        timeout: float | None = None,
        options: SlurmOptions | None = None,
        workers: SlurmWorkerOptions | None = None,
        ttl_s: float = 3600.0,
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        options = options or SlurmOptions()
        workers = workers or SlurmWorkerOptions()
        resources = {
            "gpus_per_node": gpus_per_node,
            "time_limit": None if time_limit is None else str(time_limit),
        }
        super().__init__(
            meshes,
            backend="slurm",
            name=name,
            options={**resources, **options.to_json(), **workers.to_json()},
            ttl_s=ttl_s,
            context=context,
            folder=folder,
        )
        self._indices = options.indices()
        self._timeout = timeout

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
            timeout: The timeout in seconds. Defaults to the job's timeout.
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
        return super().wait_up(self._timeout if timeout is None else timeout, progress)
