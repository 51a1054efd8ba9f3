"""Get hosts from a scheduler once, and run program after program on them.

    job = ProcessJob({"trainers": 2})
    job.apply()
    trainers = job.state(timeout=60).trainers

Another scheduler is another class, and nothing else changes. What a new scheduler implements is in
`mesh_jobs.spi`, and what its tests use in `mesh_jobs.testing`.
"""

from mesh_jobs._errors import JobBusy as JobBusy
from mesh_jobs._errors import JobEnded as JobEnded
from mesh_jobs._errors import JobError as JobError
from mesh_jobs._errors import JobMismatch as JobMismatch
from mesh_jobs._errors import JobPending as JobPending
from mesh_jobs._errors import NotSupported as NotSupported
from mesh_jobs._errors import SchedulerUnreachable as SchedulerUnreachable
from mesh_jobs._exec import exec_command as exec_command
from mesh_jobs._forward import PortForwarder as PortForwarder
from mesh_jobs._job import Job as Job
from mesh_jobs._job import job_list as job_list
from mesh_jobs._job import job_load as job_load
from mesh_jobs._job_state import JobState as JobState
from mesh_jobs._kube_image import ImageSpec as ImageSpec
from mesh_jobs._kubernetes import KubernetesJob as KubernetesJob
from mesh_jobs._local import LocalJob as LocalJob
from mesh_jobs._process import ProcessJob as ProcessJob
from mesh_jobs._report import JobEvent as JobEvent
from mesh_jobs._report import Phase as Phase
from mesh_jobs._shell import shell as shell
from mesh_jobs._slurm import SlurmJob as SlurmJob
from mesh_jobs._spec import JobSpec as JobSpec
from mesh_jobs._spec import MeshSpec as MeshSpec
from mesh_jobs._spmd import run_spmd as run_spmd
from mesh_jobs._ssh import SSHJob as SSHJob
from mesh_jobs._status import JobStatus as JobStatus
