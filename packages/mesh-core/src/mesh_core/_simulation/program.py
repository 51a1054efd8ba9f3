"""The program of a simulated cluster: how its job starts, fails and ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mesh_core._hosts.agent import HostAgent
from mesh_core._program.assembly import assemble
from mesh_core._program.root import end_all
from mesh_core._runtime.identity import Identity
from mesh_core._runtime.runtime import adopt
from mesh_core._simulation.errors import SimulatedProgramFailed, SimulationStuck
from mesh_core._simulation.host import SimulatedHost, SimulatedJobDir
from mesh_core._simulation.stacks import waiting_places
from mesh_core._supervision.lifecycle import Lifecycle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._simulation.process import SimulatedProcess
    from mesh_core._simulation.world import World
    from mesh_core._supervision.policy import MeshFailure

__all__ = ["SimulatedProgram"]

# No process of a simulation uses its directory.
DIRECTORY = Path("/nonexistent/mesh-simulation")
# The virtual time that the end of a job may take.
_END_S = 300.0


class SimulatedProgram(Lifecycle):
    """The program, which runs in the thread that created the simulation.

    Args:
        world: The cluster.
        process: The process of the program.
    """

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        super().__init__()
        self._world = world
        self._process = process
        self._failure: MeshFailure | None = None
        identity = Identity(
            host=0,
            host_name="host-0",
            slot=0,
            incarnation=0,
            job=world.job,
            token=world.token,
            directory=DIRECTORY,
        )
        self.runtime: Runtime = assemble(identity, self, process.engine)
        self.runtime.host_agent = HostAgent(
            self.runtime,
            1,
            local_host=partial(SimulatedHost, world, process),
            job_dir=SimulatedJobDir,
        )
        self.runtime.start_agent()

    def unhandled(self, failure: MeshFailure) -> None:
        """Make the program raise an unhandled failure."""
        self._failure = failure
        super().unhandled(failure)

    def leave(self, status: int = 0, *, is_at_once: bool = False) -> None:
        """Make the program raise an exception, because it must end."""
        failure = self._failure
        text = f"it ends with status {status}" if failure is None else str(failure)
        error = SimulatedProgramFailed(text)
        error.__cause__ = None if failure is None else failure.error
        self._world.scheduler.interrupt(self._world.scheduler.main, error)

    def shut_down(self, limit_s: float) -> None:
        """Stop everything that the program owns, children first, and end the job.

        Raises:
            SimulationStuck: Something does not end.
        """
        runtime, scheduler = self.runtime, self._world.scheduler
        if runtime.is_over:
            return
        over = self._process.start(lambda: end_all(runtime, False), "mesh-end")
        native = scheduler.native
        until_ns = native.now_ns() + int(limit_s * 1e9)
        over.joining.append(scheduler.main)
        while not over.is_finished:
            if native.now_ns() >= until_ns:
                raise SimulationStuck(native.now_ns() / 1e9, waiting_places(scheduler.threads()))
            scheduler.wait(until_ns)
        assert runtime.host_agent is not None
        runtime.host_agent.close(0.0)
        runtime.is_over = True
        runtime.engine.close()
        adopt(None)

    def end(self) -> None:
        """End the job at the end of the simulation."""
        self.shut_down(_END_S)
