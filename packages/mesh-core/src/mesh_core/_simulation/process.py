"""One process of a simulated cluster: its engine, its threads, its variables, and its end."""

from __future__ import annotations

import pickle
import signal

from mesh_core._calls.event_loop import load_asyncio
from mesh_core._program.launch import ProcLifecycle, serve
from mesh_core._simulation.errors import Abandoned
from mesh_core._simulation.output import LogTail
from mesh_core._simulation.process_globals import ProcessGlobals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core._core import Engine
    from mesh_core._simulation.scheduler import SimulatedThread
    from mesh_core._simulation.world import World

__all__ = ["SimulatedProcess"]

# Process ids of simulations are larger than the ids of any kernel.
_PID_FIRST = 1 << 30


class SimulatedProcess:
    """A process.

    Args:
        world: The cluster.
        host: The number of its host.
        slot: Its slot; 0 for the agent of the host.
        incarnation: The number of processes that used the slot before.

    Attributes:
        engine: The engine of its runtime.
        life: Its number in the simulation.
        pid: Its process id.
        is_alive: Whether it runs.
        log_tail: The end of its output.
        on_end: Called at its end, with the exit status or the negative number of a signal.
    """

    def __init__(self, world: World, host: int, slot: int, incarnation: int) -> None:
        self.world = world
        self.host = host
        self.slot = slot
        self.engine: Engine
        self.life: int
        self.engine, self.life = world.scheduler.native.add_process(
            host, slot, incarnation, world.job, world.token, world.backlog_bytes_max
        )
        self.pid: int = _PID_FIRST + self.life
        self.is_alive: bool = True
        self.log_tail: LogTail = LogTail()
        self.on_end: Callable[[int], object] = _ignore
        self.name: str = f"process {slot} of host {host}"
        self._globals = ProcessGlobals()
        world.add(self)

    def __str__(self) -> str:
        return self.name

    @property
    def globals(self) -> ProcessGlobals:
        """Its module variables."""
        return self._globals

    def activate(self) -> None:
        """Make this the process whose code runs."""
        self._globals.activate()

    def start(self, function: Callable[[], object], name: str = "main") -> SimulatedThread:
        """Run a function on a new thread of the process."""
        return self.world.scheduler.spawn(self, function, name)

    def run(self, entry: bytes) -> None:
        """Run a process of a mesh until it ends; see `mesh_core._program.launch.main`."""
        facts: dict[str, Any] = pickle.loads(entry)
        lifecycle = ProcLifecycle()
        serve(facts, lifecycle, self.engine)
        lifecycle.over.wait()
        self.exit(lifecycle.exit_status)

    def exit(self, status: int) -> None:
        """End the process normally; a thread of it that calls this does not continue."""
        self._end(status, is_killed=False)
        raise Abandoned

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process as a signal does."""
        self._end(-number, is_killed=True)

    def close(self) -> None:
        """Release the event loop of a process whose threads have ended."""
        thread: Any = self._globals.value("_thread")
        if thread is not None:
            asyncio = load_asyncio()
            for task in asyncio.all_tasks(thread.loop):
                task._log_destroy_pending = False
            thread.loop.close()

    def _end(self, status: int, *, is_killed: bool) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        scheduler = self.world.scheduler
        scheduler.native.end_process(self.life, is_killed)
        for thread in scheduler.threads_of(self):
            scheduler.interrupt(thread, Abandoned())
        self.on_end(status)


def _ignore(_status: int) -> None:
    """Do nothing."""
