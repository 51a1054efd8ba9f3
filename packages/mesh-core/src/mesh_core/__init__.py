"""Actors, meshes and supervision: a distributed program in one script.

The package has seven public modules: `mesh_core` for programs, `mesh_core.services` for replicated
services, `mesh_core.recording` and `mesh_core.replay` to reproduce failures elsewhere,
`mesh_core.compat` for programs that were written for Monarch, `mesh_core.spi` for libraries that
extend Mesh (telemetry, transports, schedulers), and `mesh_core.testing` for tests.
Every other module starts with an underscore and is private.
"""

from mesh_core._actors.context import Context as Context
from mesh_core._actors.context import Instance as Instance
from mesh_core._actors.context import context as context
from mesh_core._actors.context import current_rank as current_rank
from mesh_core._actors.controller import get_or_spawn_controller as get_or_spawn_controller
from mesh_core._calls.accumulator import Accumulator as Accumulator
from mesh_core._calls.actor import Actor as Actor
from mesh_core._calls.channel import Channel as Channel
from mesh_core._calls.channel import Port as Port
from mesh_core._calls.channel import PortReceiver as PortReceiver
from mesh_core._calls.completed import as_completed as as_completed
from mesh_core._calls.completed import wait as wait
from mesh_core._calls.coroutine_future import returns_future as returns_future
from mesh_core._calls.endpoint import Endpoint as Endpoint
from mesh_core._calls.endpoint import as_endpoint as as_endpoint
from mesh_core._calls.endpoint_decorators import concurrent_endpoint as concurrent_endpoint
from mesh_core._calls.endpoint_decorators import endpoint as endpoint
from mesh_core._calls.future import Future as Future
from mesh_core._configuration.config import Config as Config
from mesh_core._configuration.config import configure as configure
from mesh_core._configuration.config import configured as configured
from mesh_core._core import Region as Region
from mesh_core._errors import ActorError as ActorError
from mesh_core._errors import ActorFailed as ActorFailed
from mesh_core._errors import CallCancelled as CallCancelled
from mesh_core._errors import ChannelClosed as ChannelClosed
from mesh_core._errors import ConfigError as ConfigError
from mesh_core._errors import DeadlineExceeded as DeadlineExceeded
from mesh_core._errors import DeadlockError as DeadlockError
from mesh_core._errors import DrainFailed as DrainFailed
from mesh_core._errors import ForeignHandle as ForeignHandle
from mesh_core._errors import HostDied as HostDied
from mesh_core._errors import MailboxFull as MailboxFull
from mesh_core._errors import MeshError as MeshError
from mesh_core._errors import MeshStopped as MeshStopped
from mesh_core._errors import NoReply as NoReply
from mesh_core._errors import ProcDied as ProcDied
from mesh_core._errors import SpawnError as SpawnError
from mesh_core._errors import SupervisionError as SupervisionError
from mesh_core._errors import Unpicklable as Unpicklable
from mesh_core._failover.errors import TakeOverError as TakeOverError
from mesh_core._failover.job import Job as Job
from mesh_core._failover.take_over import take_over as take_over
from mesh_core._hosts.attach import add_standby_workers as add_standby_workers
from mesh_core._hosts.attach import attach_to_workers as attach_to_workers
from mesh_core._ids import ActorAddr as ActorAddr
from mesh_core._ids import ProcId as ProcId
from mesh_core._meshes.actor_mesh import ActorMesh as ActorMesh
from mesh_core._meshes.host_mesh import HostMesh as HostMesh
from mesh_core._meshes.host_mesh import this_host as this_host
from mesh_core._meshes.patches import patch_actor as patch_actor
from mesh_core._meshes.proc_mesh import ProcMesh as ProcMesh
from mesh_core._meshes.proc_mesh import this_proc as this_proc
from mesh_core._observability.trace_context import TraceContext as TraceContext
from mesh_core._observability.trace_context import with_trace_context as with_trace_context
from mesh_core._observability.tracing import get_meter as get_meter
from mesh_core._observability.tracing import span as span
from mesh_core._observability.tracing import traced as traced
from mesh_core._processes.command import BootstrapCommand as BootstrapCommand
from mesh_core._program import exception_hook as _exception_hook
from mesh_core._program import first_use as _first_use
from mesh_core._program.shutdown import shutdown_context as shutdown_context
from mesh_core._security.credentials import Credentials as Credentials
from mesh_core._security.errors import CredentialsError as CredentialsError
from mesh_core._shapes.shape import Extent as Extent
from mesh_core._shapes.shape import Point as Point
from mesh_core._shapes.shape_errors import MeshIndexError as MeshIndexError
from mesh_core._shapes.shape_errors import SelectorError as SelectorError
from mesh_core._shapes.shape_errors import ShapeError as ShapeError
from mesh_core._shapes.shape_errors import SplitError as SplitError
from mesh_core._shapes.shape_errors import UnknownDim as UnknownDim
from mesh_core._shapes.value_mesh import ValueMesh as ValueMesh
from mesh_core._supervision.policy import MeshFailure as MeshFailure
from mesh_core._supervision.policy import RestartPolicy as RestartPolicy
from mesh_core._supervision.policy import unhandled_fault_hook as unhandled_fault_hook
from mesh_core._workers.serve import run_worker as run_worker

_exception_hook.register()
_first_use.register()


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Few programs read it, and this import takes longer than the import of this package.
        from importlib.metadata import version  # noqa: PLC0415

        return version("torchmesh-core")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
