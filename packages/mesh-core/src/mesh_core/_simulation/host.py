"""The processes of one host of a simulated cluster."""

from __future__ import annotations

import signal
import threading
from typing import Any

from mesh_core._processes.exit_report import ExitReport, signal_name
from mesh_core._processes.job_dir import JobDir
from mesh_core._processes.local_host import LocalHost
from mesh_core._simulation.process import SimulatedProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mesh_core._processes.process_spec import ProcSpec
    from mesh_core._simulation.world import World

__all__ = ["SimulatedHost", "SimulatedJobDir"]

# The maximum delays until a new process runs, and until the end of a process is detected.
_START_S = 0.05
_REAP_S = 0.003
_STEPS = 1_000_000


class SimulatedHost(LocalHost):
    """Starts, monitors and stops processes, with the interface of `LocalHost`.

    Args:
        world: The cluster.
        agent: The process that is the agent of the host.
        on_exit: Called on a thread of the agent soon after each exit.
        on_start: Called like `on_exit`, with slot, incarnation and pid of each started process.
    """

    def __init__(
        self,
        world: World,
        agent: SimulatedProcess,
        job_dir: Path,
        *,
        on_exit: Callable[[ExitReport], None],
        on_start: Callable[[int, int, int], None] | None = None,
        **_options: Any,
    ) -> None:
        self._world = world
        self._agent = agent
        self._on_exit = on_exit
        self._on_start = on_start
        self._running: dict[int, SimulatedProcess] = {}
        self._is_closing = False
        # Processes that were started and whose exit was not reported.
        self._open = 0
        self._changed = threading.Condition()

    def spawn(self, specs: Sequence[ProcSpec], preload: Sequence[str] = ()) -> None:
        """Start processes.

        Raises:
            RuntimeError: The host is closed.
        """
        if self._is_closing:
            raise RuntimeError("cannot spawn: the host is closed")
        for spec in specs:
            process = SimulatedProcess(self._world, self._agent.host, spec.slot, spec.incarnation)
            process.name = spec.name
            process.on_end = _Exit(self, spec, process)
            self._running[spec.slot] = process
            self._open += 1
            self._world.processes.append(process)
            self._world.scheduler.after(self._random_s(_START_S), _Start(self, spec, process))

    def started(self, spec: ProcSpec, process: SimulatedProcess) -> None:
        """Run a process that was spawned a moment ago."""
        if process.is_alive and self._agent.is_alive:
            process.start(lambda: process.run(spec.entry))
            if self._on_start is not None:
                tell, pid = self._on_start, process.pid
                self._agent.start(lambda: tell(spec.slot, spec.incarnation, pid), "mesh-host")

    def ended(self, spec: ProcSpec, process: SimulatedProcess, status: int) -> None:
        """Report the end of a process a moment later, unless its host has failed."""
        if self._running.get(spec.slot) is process:
            del self._running[spec.slot]
        self._world.processes.remove(process)
        report = ExitReport(
            slot=spec.slot,
            incarnation=spec.incarnation,
            pid=process.pid,
            exit_code=None if status < 0 else status,
            signal=-status if status < 0 else None,
            core_dumped=False,
            log_tail=process.log_tail.lines(),
            reason=f"{spec.name} (pid {process.pid}) {_described(status)}",
        )

        def tell() -> None:
            try:
                self._on_exit(report)
            finally:
                with self._changed:
                    self._open -= 1
                    self._changed.notify_all()

        def reap() -> None:
            if self._agent.is_alive:
                self._agent.start(tell, "mesh-host")

        self._world.scheduler.after(self._random_s(_REAP_S), reap)

    def pid(self, slot: int) -> int | None:
        """Return the process id in a slot; None without a process."""
        process = self._running.get(slot)
        return None if process is None else process.pid

    def kill(self, slot: int, sig: int = signal.SIGKILL) -> None:
        """Send a signal to the process in a slot, if it has one."""
        process = self._running.get(slot)
        if process is not None:
            self._world.signal(process.pid, sig)

    send_signal = kill

    def stop_of(self, slot: int) -> None:
        """Return None: stopped processes are not reported."""

    def stopped_supervisor(self) -> None:
        """Return None: the host has no supervisor that can be stopped."""

    def flush(self, limit_s: float = 0.0) -> bool:
        """Return True: the output of processes is not captured."""
        return True

    def close(self, grace: float) -> None:
        """End all processes and wait for their exit reports."""
        self._is_closing = True
        for process in list(self._running.values()):
            process.kill(signal.SIGTERM if grace else signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(lambda: not self._open)

    def _random_s(self, most_s: float) -> float:
        return most_s * (self._world.scheduler.native.random_below(_STEPS) + 1) / _STEPS


class _Start:
    """The start of one process, as a timer."""

    def __init__(self, host: SimulatedHost, spec: ProcSpec, process: SimulatedProcess) -> None:
        self._host, self._spec, self._process = host, spec, process

    def __call__(self) -> None:
        self._host.started(self._spec, self._process)


class _Exit:
    """The end of one process."""

    def __init__(self, host: SimulatedHost, spec: ProcSpec, process: SimulatedProcess) -> None:
        self._host, self._spec, self._process = host, spec, process

    def __call__(self, status: int) -> None:
        self._host.ended(self._spec, self._process, status)


class SimulatedJobDir(JobDir):
    """Replaces the directory through which real processes of a host find each other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_made = False

    def make(self, then: Callable[[], None]) -> None:
        """Call `then`, once."""
        if not self._is_made:
            self._is_made = True
            then()

    def close(self) -> None:
        """Do nothing: there is no directory."""


def _described(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    return f"was killed by {signal_name(-status)}"
