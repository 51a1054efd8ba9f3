"""Allocate hosts from a scheduler once, and run many programs on them, one after another.

    job = ProcessJob({"trainers": 2})
    job.apply()
    trainers = job.state(timeout=60).trainers

To use another scheduler, use another job class; the rest of the program stays the same.
`mesh_jobs.spi` contains the interface for new schedulers, and `mesh_jobs.testing` the conformance
tests for them.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from types import ModuleType as _ModuleType

    from mesh_jobs._api import ClientSpec as ClientSpec
    from mesh_jobs._api import ExistingPods as ExistingPods
    from mesh_jobs._api import HostDraining as HostDraining
    from mesh_jobs._api import ImageSpec as ImageSpec
    from mesh_jobs._api import Job as Job
    from mesh_jobs._api import JobBusy as JobBusy
    from mesh_jobs._api import JobEnded as JobEnded
    from mesh_jobs._api import JobError as JobError
    from mesh_jobs._api import JobEvent as JobEvent
    from mesh_jobs._api import JobMismatch as JobMismatch
    from mesh_jobs._api import JobPending as JobPending
    from mesh_jobs._api import JobSpec as JobSpec
    from mesh_jobs._api import JobState as JobState
    from mesh_jobs._api import JobStatus as JobStatus
    from mesh_jobs._api import KubernetesJob as KubernetesJob
    from mesh_jobs._api import KubernetesOptions as KubernetesOptions
    from mesh_jobs._api import LeavingWatch as LeavingWatch
    from mesh_jobs._api import LocalJob as LocalJob
    from mesh_jobs._api import MeshSpec as MeshSpec
    from mesh_jobs._api import NotSupported as NotSupported
    from mesh_jobs._api import Phase as Phase
    from mesh_jobs._api import PodOptions as PodOptions
    from mesh_jobs._api import PortForwarder as PortForwarder
    from mesh_jobs._api import ProcessJob as ProcessJob
    from mesh_jobs._api import RankFailure as RankFailure
    from mesh_jobs._api import SchedulerUnreachable as SchedulerUnreachable
    from mesh_jobs._api import ScriptFailed as ScriptFailed
    from mesh_jobs._api import SlurmJob as SlurmJob
    from mesh_jobs._api import SlurmOptions as SlurmOptions
    from mesh_jobs._api import SlurmWorkerOptions as SlurmWorkerOptions
    from mesh_jobs._api import SSHJob as SSHJob
    from mesh_jobs._api import SSHOptions as SSHOptions
    from mesh_jobs._api import SSHWorkerOptions as SSHWorkerOptions
    from mesh_jobs._api import exec_command as exec_command
    from mesh_jobs._api import job_list as job_list
    from mesh_jobs._api import job_load as job_load
    from mesh_jobs._api import run_spmd as run_spmd
    from mesh_jobs._api import setup_torch_distributed as setup_torch_distributed
    from mesh_jobs._api import shell as shell


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Few programs read the version, and this import takes longer than the import of this
        # package.
        from importlib.metadata import version  # noqa: PLC0415

        return version("torchmesh-jobs")
    if name == "__all__":
        # For `from mesh_jobs import *`.
        return list(_load_api().__all__)
    if name.startswith("_") or name not in _load_api().__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(_load_api(), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_load_api().__all__})


def _load_api() -> "_ModuleType":
    # Workers need none of these names, and start in a third of the time without them.
    from mesh_jobs import _api  # noqa: PLC0415

    return _api
