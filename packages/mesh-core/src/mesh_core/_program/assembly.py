"""Creates the runtime of a process from its components."""

from __future__ import annotations

from mesh_core._actors.agent import Agent
from mesh_core._hosts.places import Places
from mesh_core._runtime.runtime import Runtime, adopt
from mesh_core._supervision.ownership import Ownership
from mesh_core._supervision.stop_watchdog import StopWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Engine
    from mesh_core._runtime.identity import Identity
    from mesh_core._supervision.lifecycle import Lifecycle

__all__ = ["assemble"]


def assemble(identity: Identity, lifecycle: Lifecycle, engine: Engine | None = None) -> Runtime:
    """Create the runtime of this process and adopt it; its agent does not run yet.

    Args:
        identity: The identity of the process in its job.
        lifecycle: How the process ends.
        engine: Its engine. Default: a new one.
    """
    runtime = Runtime(identity, lifecycle, engine)
    runtime.places = Places(runtime)
    runtime.ownership = Ownership(runtime)
    runtime.stop_watch = StopWatch(runtime)
    runtime.agent = Agent(runtime)
    adopt(runtime)
    return runtime
