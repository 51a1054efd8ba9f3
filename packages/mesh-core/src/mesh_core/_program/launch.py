"""Start and exit of a process of a mesh."""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import sys
import threading

from mesh_core._configuration.config import inherit
from mesh_core._meshes.patches import inherit_patches
from mesh_core._processes.requested_stack import offer_stack
from mesh_core._program.assembly import assemble
from mesh_core._program.bootstrap import run_set_up
from mesh_core._program.recording import start_recording
from mesh_core._runtime.identity import Identity
from mesh_core._serialization.child_processes import pickle_script_by_value
from mesh_core._supervision.lifecycle import Lifecycle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._core import Engine
    from mesh_core._runtime.runtime import Runtime

__all__ = ["ProcLifecycle", "main", "serve"]

# The time that an exiting process waits for others to read its messages.
_DRAIN_LIMIT_S = 1.0


def main(entry: bytes) -> int:
    """Run a process of a mesh until it is stopped, and return its exit status.

    Args:
        entry: The packed description of the process from the agent of the host.
    """
    # Only the crashed thread is dumped, because the error contains the last lines of the log.
    faulthandler.enable(2, all_threads=False)
    _show_logging()
    pickle_script_by_value()
    lifecycle = ProcLifecycle()
    runtime = serve(pickle.loads(entry), lifecycle)
    lifecycle.over.wait()
    # The last replies may still wait until a socket buffer has space.
    runtime.engine.drain(_DRAIN_LIMIT_S)
    return lifecycle.exit_status


def serve(facts: dict[str, Any], lifecycle: ProcLifecycle, engine: Engine | None = None) -> Runtime:
    """Set up the runtime of a process of a mesh, and serve requests on other threads.

    Args:
        facts: The description of the process from the agent of the host.
        lifecycle: How the process ends.
        engine: Its engine. Default: a new one.
    """
    inherit(facts["config"])
    if facts["is_memory_limited"]:
        offer_stack()
    runtime = assemble(Identity(**facts["identity"]), lifecycle, engine)
    if facts["early_events"]:
        runtime.engine.start_early_events(facts["early_events"])
    for host, epoch in facts["host_epochs"].items():
        runtime.engine.host_replaced(host, epoch)
    if facts["patches"]:
        inherit_patches(facts["patches"])
    start_recording(runtime)
    problem = _set_up(runtime, facts["bootstrap"])
    runtime.engine.dial(runtime.host_agent_proc())
    if facts["bootstrap"]:
        runtime.engine.keep_early_messages(False)
    if problem is not None:
        runtime.agent.refuse_set_up(problem)
    runtime.start_agent()
    return runtime


def _show_logging() -> None:
    """Print all log records with level and name, unless the user configures logging.

    This applies only while no handler is installed, so `logging.basicConfig` and similar calls take
    precedence.
    """
    last = logging.lastResort
    if last is not None:
        last.setLevel(logging.NOTSET)
        last.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _set_up(runtime: Runtime, bootstrap: bytes) -> BaseException | None:
    """Run the user's `bootstrap` before any actor, and return the exception that it raised.

    The agent runs on a separate thread during that time and on another one afterwards. Threads of
    actors therefore inherit the thread settings that `bootstrap` has made, such as its processors.
    """
    if not bootstrap:
        return None
    agent = runtime.agent
    # Spawns arrive after the agent of the host is dialled, which `main` does after this returns.
    runtime.engine.keep_early_messages(True)
    agent.begin_set_up()
    thread = threading.Thread(target=agent.run, name="mesh-set-up", daemon=True)
    thread.start()
    problem = run_set_up(runtime, bootstrap)
    agent.end_set_up(thread)
    return problem


class ProcLifecycle(Lifecycle):
    """The end of a process of a mesh: its main thread returns from `main`.

    Attributes:
        over: Set when the process has to end.
        exit_status: Its exit status.
    """

    def __init__(self) -> None:
        super().__init__()
        self.over: threading.Event = threading.Event()
        self.exit_status: int = 0

    def leave(self, status: int = 0, *, is_at_once: bool = False) -> None:
        """End the process."""
        self.exit_status = status
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                # The stream has no reader, or the user has closed it.
                continue
        self.over.set()


if __name__ == "__main__":
    from mesh_core._processes.command import take_entry

    # Import the module under its own name, so that it exists once.
    from mesh_core._program.launch import main as run

    packed = take_entry()
    if packed is None:
        sys.exit("mesh_core._program.launch starts the processes of a mesh: do not run it directly")
    code = run(packed)
    sys.stdout.flush()
    os._exit(code)
