"""The interface for new schedulers: the backend class, its inputs and its results.

A backend is a class that derives from `Backend` and is registered under a name in the entry-point
group `mesh_jobs.backends`. It must pass the tests in `mesh_jobs.testing`.

Additional resources of hosts, such as files, implement `JobExtension` and are passed to
`Job.add_extensions`. Commands can keep extensions open that are registered under a name in the
group `mesh_jobs.extensions`; they open them through a `CommandContext`.

Functions in the group `mesh_jobs.script_environment` add variables to the environment of scripts
that `run_spmd` starts. Each takes the rank and the variables so far, and returns more of them.
"""

from mesh_jobs._atomic_files import read_json as read_json
from mesh_jobs._atomic_files import write_private as write_private
from mesh_jobs._backend.allocation_request import AllocationRequest as AllocationRequest
from mesh_jobs._backend.allocation_request import WorkerCommand as WorkerCommand
from mesh_jobs._backend.attachment import Attachment as Attachment
from mesh_jobs._backend.backend import Backend as Backend
from mesh_jobs._backend.follower import Follower as Follower
from mesh_jobs._backend.log_tail import tail as tail
from mesh_jobs._backend.registry import backend_names as backend_names
from mesh_jobs._backend.report import THIS_HOST as THIS_HOST
from mesh_jobs._backend.report import HostReport as HostReport
from mesh_jobs._backend.report import Report as Report
from mesh_jobs._extensions.command_context import CommandContext as CommandContext
from mesh_jobs._extensions.extension import JobExtension as JobExtension
from mesh_jobs._extensions.extension import OpenJobExtension as OpenJobExtension
