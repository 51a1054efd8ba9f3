"""What a new scheduler implements: the backend, and what it is given and gives.

A backend is a class that derives from `Backend`, offered under a name in the entry-point group
`mesh_jobs.backends`. `mesh_jobs.testing` has the tests that it must pass.

What hosts are to have besides is an `Equipment`, which `Job.equip` takes. Commands hold one that
is offered under a name in the group `mesh_jobs.equipment`, and ask for it by a `CommandDoor`.
"""

from mesh_jobs._atomic_files import read_json as read_json
from mesh_jobs._atomic_files import write_private as write_private
from mesh_jobs._backend.attachment import Attachment as Attachment
from mesh_jobs._backend.backend import Backend as Backend
from mesh_jobs._backend.follower import Follower as Follower
from mesh_jobs._backend.log_tail import tail as tail
from mesh_jobs._backend.order import Order as Order
from mesh_jobs._backend.order import WorkerCommand as WorkerCommand
from mesh_jobs._backend.registry import backend_names as backend_names
from mesh_jobs._backend.report import THIS_HOST as THIS_HOST
from mesh_jobs._backend.report import HostReport as HostReport
from mesh_jobs._backend.report import Report as Report
from mesh_jobs._extensions.command_context import CommandDoor as CommandDoor
from mesh_jobs._extensions.extension import Equipment as Equipment
from mesh_jobs._extensions.extension import OpenEquipment as OpenEquipment
