"""The public names of `mesh_jobs`; imported when the first of them is used."""

from mesh_jobs._backend.report import HostDraining, JobEvent, Phase
from mesh_jobs._errors import (
    JobBusy,
    JobEnded,
    JobError,
    JobMismatch,
    JobPending,
    NotSupported,
    SchedulerUnreachable,
    ScriptFailed,
)
from mesh_jobs._exec.exec_command import exec_command
from mesh_jobs._forward.forwarder import PortForwarder
from mesh_jobs._job.eviction_watch import LeavingWatch
from mesh_jobs._job.job import Job
from mesh_jobs._job.lookup import job_list, job_load
from mesh_jobs._job.state import JobState
from mesh_jobs._job.status import JobStatus
from mesh_jobs._kube.image_spec import ImageSpec
from mesh_jobs._kube.job import KubernetesJob
from mesh_jobs._kube.options import ExistingPods, KubernetesOptions, PodOptions
from mesh_jobs._local.local_backend import LocalJob
from mesh_jobs._local.process_backend import ProcessJob
from mesh_jobs._shell.shell import shell
from mesh_jobs._slurm.job import SlurmJob
from mesh_jobs._slurm.options import SlurmOptions, SlurmWorkerOptions
from mesh_jobs._spec import ClientSpec, JobSpec, MeshSpec
from mesh_jobs._spmd.launcher import run_spmd
from mesh_jobs._spmd.rank_failure import RankFailure
from mesh_jobs._spmd.torch_distributed import setup_torch_distributed
from mesh_jobs._ssh.backend import SSHJob
from mesh_jobs._ssh.options import SSHOptions, SSHWorkerOptions

__all__ = [
    "ClientSpec",
    "ExistingPods",
    "HostDraining",
    "ImageSpec",
    "Job",
    "JobBusy",
    "JobEnded",
    "JobError",
    "JobEvent",
    "JobMismatch",
    "JobPending",
    "JobSpec",
    "JobState",
    "JobStatus",
    "KubernetesJob",
    "KubernetesOptions",
    "LeavingWatch",
    "LocalJob",
    "MeshSpec",
    "NotSupported",
    "Phase",
    "PodOptions",
    "PortForwarder",
    "ProcessJob",
    "RankFailure",
    "SSHJob",
    "SSHOptions",
    "SSHWorkerOptions",
    "SchedulerUnreachable",
    "ScriptFailed",
    "SlurmJob",
    "SlurmOptions",
    "SlurmWorkerOptions",
    "exec_command",
    "job_list",
    "job_load",
    "run_spmd",
    "setup_torch_distributed",
    "shell",
]
