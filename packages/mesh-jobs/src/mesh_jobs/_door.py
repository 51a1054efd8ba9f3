"""What programs import from `mesh_jobs`; loaded with the first of these names."""

from mesh_jobs._errors import (
    JobBusy,
    JobEnded,
    JobError,
    JobMismatch,
    JobPending,
    NotSupported,
    SchedulerUnreachable,
)
from mesh_jobs._exec import exec_command
from mesh_jobs._forward import PortForwarder
from mesh_jobs._job import Job
from mesh_jobs._job_state import JobState
from mesh_jobs._kube_image import ImageSpec
from mesh_jobs._kubernetes import KubernetesJob
from mesh_jobs._leaving import LeavingWatch
from mesh_jobs._loading import job_list, job_load
from mesh_jobs._local import LocalJob
from mesh_jobs._process import ProcessJob
from mesh_jobs._report import HostLeaving, JobEvent, Phase
from mesh_jobs._shell import shell
from mesh_jobs._slurm import SlurmJob
from mesh_jobs._spec import ClientSpec, JobSpec, MeshSpec
from mesh_jobs._spmd import run_spmd
from mesh_jobs._ssh import SSHJob
from mesh_jobs._status import JobStatus

__all__ = [
    "ClientSpec",
    "HostLeaving",
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
    "LeavingWatch",
    "LocalJob",
    "MeshSpec",
    "NotSupported",
    "Phase",
    "PortForwarder",
    "ProcessJob",
    "SSHJob",
    "SchedulerUnreachable",
    "SlurmJob",
    "exec_command",
    "job_list",
    "job_load",
    "run_spmd",
    "shell",
]
