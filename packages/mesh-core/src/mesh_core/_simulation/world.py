"""The state of a simulated cluster: its processes, its hosts, and the faults that occur."""

from __future__ import annotations

import random
import signal

from mesh_core._configuration.config import effective
from mesh_core._simulation.scheduler import NS, Scheduler, running_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mesh_core._simulation.process import SimulatedProcess

__all__ = ["World"]

# A process that a signal has stopped continues by another signal.
_FOREVER_S = 1e9
_IGNORED = (0, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG)


class World:
    """A simulated cluster.

    Args:
        seed: The seed that determines everything that happens.
        limit_s: The virtual time after which the program counts as stuck, in seconds.

    Attributes:
        events: The faults that have occurred, with their virtual times, as text.
        job: The job, and `token` its secret.
        scheduler: The threads and timers.
        processes: The living processes that are not agents of hosts.
        agents: The living agents of all hosts except the host of the program, by host.
    """

    def __init__(self, seed: int, limit_s: float) -> None:
        draw = random.Random(seed)
        self.events: list[str] = []
        self.job: bytes = draw.randbytes(16)
        self.token: bytes = draw.randbytes(32)
        self.backlog_bytes_max: int = effective().link_outbox_bytes_max
        self.scheduler: Scheduler = Scheduler(seed, limit_s)
        self.processes: list[SimulatedProcess] = []
        self.agents: dict[int, SimulatedProcess] = {}
        self._all: list[SimulatedProcess] = []
        self._separated: tuple[frozenset[int], float] = (frozenset(), 0.0)

    @property
    def now_s(self) -> float:
        """The virtual time since the start, in seconds."""
        return self.scheduler.native.now_ns() / NS

    def add(self, process: SimulatedProcess) -> None:
        """Remember a process until the end of the simulation."""
        self._all.append(process)

    def kill_host(self, host: int) -> None:
        """Lose a host with all its processes, as in a power failure."""
        agent = self.agents[host]
        self._note(f"{agent} is lost")
        for process in [one for one in self.processes if one.host == host]:
            process.kill()
        agent.kill()

    def partition(self, hosts: Iterable[int], duration_s: float) -> None:
        """Separate hosts from all others for a time; messages to them arrive afterwards."""
        chosen = sorted(hosts)
        names = ", ".join(str(self.agents.get(host, f"host-{host}")) for host in chosen)
        self._note(f"{names} cannot reach others for {duration_s:.6f} s")
        self._separated = frozenset(chosen), self.now_s + duration_s
        self.scheduler.native.separate(chosen, int(duration_s * NS))

    def slow_down(self, host: int, factor: int) -> None:
        """Make a host slower than others from now on."""
        self._note(f"host-{host} is {factor} times slower than others")
        self.scheduler.native.slow_down(host, factor)

    def kill(self, process: SimulatedProcess) -> None:
        """Kill a process."""
        self._note(f"{process} is killed")
        process.kill()

    def stall(self, process: SimulatedProcess, duration_s: float) -> None:
        """Stop a process for a time in seconds."""
        self._note(f"{process} is stopped for {duration_s:.6f} s")
        self.scheduler.native.stall(process.life, int(duration_s * NS))

    def break_connection(self, process: SimulatedProcess) -> None:
        """Break a connection of a process."""
        self._note(f"a connection of {process} breaks")
        self.scheduler.native.break_connection(process.life)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process of the cluster, as `os.kill` does.

        Raises:
            ProcessLookupError: There is no such process.
        """
        process = next((one for one in self.processes if one.pid == pid), None)
        if process is None:
            raise ProcessLookupError(3, "No such process")
        if number in _IGNORED:
            return
        self._note(f"{process} gets {signal.Signals(number).name}")
        if number in (signal.SIGSTOP, signal.SIGTSTP):
            self.scheduler.native.stall(process.life, int(_FOREVER_S * NS))
        elif number == signal.SIGCONT:
            self.scheduler.native.end_stall(process.life)
        else:
            process.kill(number)
            thread = running_thread()
            if thread is not None and thread.process is process:
                self.scheduler.wait(None)

    def is_reachable(self, host: int) -> bool:
        """Return whether the program can reach a host now."""
        separated, until_s = self._separated
        return self.now_s >= until_s or (host in separated) == (0 in separated)

    def host_ended(self, host: int, agent: SimulatedProcess) -> None:
        """Forget the agent of a host."""
        if self.agents.get(host) is agent:
            del self.agents[host]

    def close(self) -> None:
        """End everything that still runs."""
        self.scheduler.close()
        for process in self._all:
            process.close()

    def _note(self, event: str) -> None:
        self.events.append(f"{self.now_s:.6f} s: {event}")
