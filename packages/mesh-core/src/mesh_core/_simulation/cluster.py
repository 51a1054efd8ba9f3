"""A simulated cluster, and the program that runs in it."""

from __future__ import annotations

import functools
import gc
import random
from contextlib import contextmanager

from mesh_core._configuration.config import effective
from mesh_core._core import Keys, Region
from mesh_core._hosts.address import DEFAULT_PORT, Address
from mesh_core._hosts.route import Route
from mesh_core._meshes.host_mesh import HostMesh, this_host
from mesh_core._recording.random_states import random_states, restore_random_states
from mesh_core._simulation.injection import inject, mailbox_len
from mesh_core._simulation.output import simulated_output
from mesh_core._simulation.process import SimulatedProcess
from mesh_core._simulation.process_globals import ProcessGlobals
from mesh_core._simulation.program import SimulatedProgram
from mesh_core._simulation.remote_host import start_host
from mesh_core._simulation.replacements import simulated_functions
from mesh_core._simulation.scheduler import running_thread
from mesh_core._simulation.standard_library import simulated_standard_library
from mesh_core._simulation.world import World
from mesh_core._supervision.failure import host_exit_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mesh_core._simulation.faults import SimulatedFaults

__all__ = ["LIMIT_S", "SimulatedCluster", "simulated"]

# The default limit of the virtual time of a program.
LIMIT_S = 3600.0
_KEYS_S = 86_400.0


class SimulatedCluster:
    """A cluster in this process, as yielded by `simulated`.

    Attributes:
        seed: The seed that determines everything that happens.
        hosts: The hosts of the cluster without the host of the program, unless the cluster has no
            other hosts.
    """

    seed: int
    hosts: HostMesh

    def __init__(self, seed: int, world: World, hosts: HostMesh) -> None:
        self.seed = seed
        self.hosts = hosts
        self._world = world

    @property
    def now_s(self) -> float:
        """The virtual time since the start, in seconds."""
        return self._world.now_s

    @property
    def trace_hash(self) -> int:
        """A hash of everything that has happened: equal for equal runs with equal seeds."""
        return self._world.scheduler.native.trace_hash()

    @property
    def events(self) -> tuple[str, ...]:
        """The faults that have occurred, with their virtual times."""
        return tuple(self._world.events)

    def kill_host(self, host: int) -> None:
        """Lose a host with all its processes, as in a power failure.

        Args:
            host: Its position in `hosts`.

        Raises:
            IndexError: There is no such host, or it is dead already.
        """
        self._world.kill_host(self._number(host))

    def partition(self, hosts: Iterable[int], duration_s: float) -> None:
        """Separate hosts from all others for a time; messages to them arrive afterwards.

        Args:
            hosts: Their positions in `hosts`.
            duration_s: The time in seconds. After three heartbeats, the program declares the hosts
                dead.

        Raises:
            IndexError: There is no such host, or it is dead already.
        """
        self._world.partition([self._number(host) for host in hosts], duration_s)

    def slow_down(self, host: int, factor: int) -> None:
        """Make a host slower than others from now on.

        Args:
            host: Its position in `hosts`.
            factor: How many times slower its threads and its network are.

        Raises:
            IndexError: There is no such host, or it is dead already.
        """
        self._world.slow_down(self._number(host), factor)

    def _number(self, host: int) -> int:
        """Return the number of a living host in the job."""
        if host + 1 not in self._world.agents:
            living = sorted(number - 1 for number in self._world.agents)
            raise IndexError(f"there is no living host {host}: the living ones are {living}")
        return host + 1


def _start(
    world: World, hosts: int, standby: int, mailbox: int | None
) -> tuple[SimulatedProgram, HostMesh]:
    """Start the program of a cluster in this thread, and attach it to the hosts."""
    root = SimulatedProcess(world, 0, 0, 0)
    root.name = "the program"
    root.globals.inherit_configuration(mailbox)
    world.scheduler.start(root)
    program = SimulatedProgram(world, root)
    mesh = _add_hosts(world, program, hosts) if hosts else this_host()
    config, places = effective(), program.runtime.places
    for number in range(hosts + 1, hosts + standby + 1):
        places.standby.hold(_address(number), None, _keys(), config)
    return program, mesh


def _add_hosts(world: World, program: SimulatedProgram, count: int) -> HostMesh:
    """Attach hosts; unlike in `attach_to_workers`, they exchange no routes, which they ignore."""
    config, runtime = effective(), program.runtime
    addresses = [_address(host) for host in range(1, count + 1)]
    places = runtime.places.add(addresses, None, _keys(), config)
    settings = config.as_mapping()
    silence = "nothing was received from it for three heartbeats"
    for place in places:
        name = place.host_name = f"host-{place.host}"
        place.route = Route([place.address.name])
        place.worker_id = f"{name}-0"
        start_host(world, place.host, name, 0, settings, config.host_lease_s)
        lost = host_exit_report(runtime, name, silence)
        runtime.engine.monitor_host(
            place.host, config.heartbeat_s, config.unresponsive_timeout_s, lost, lost
        )
    numbers = tuple(place.host for place in places)
    return HostMesh(numbers, Region.row_major(["hosts"], [count]), None)


def _address(number: int) -> Address:
    """Return the address of a machine; every address has one."""
    return Address(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", DEFAULT_PORT)


@functools.cache
def _keys() -> Keys:
    """Return keys, which a `Place` requires; a simulation encrypts no data."""
    return Keys.create(None, _KEYS_S, "simulation")


@contextmanager
def simulated(
    hosts: int = 0,
    *,
    seed: int = 0,
    standby: int = 0,
    faults: SimulatedFaults | None = None,
    limit_s: float = LIMIT_S,
) -> Iterator[SimulatedCluster]:
    """Run a program in a simulated cluster, in this thread and under virtual time.

    In the block, meshes of processes and actors start as usual, but all of them run in this
    process, one thread at a time. The messages travel through the same state machines as in
    production, over a simulated network. The clock, the latencies, the order of events and the
    faults derive from the seed: a run with an equal seed is equal.

    Args:
        hosts: The number of hosts in addition to the host of the program.
        seed: The seed.
        standby: The number of standby hosts, which replace hosts that are lost.
        faults: The faults that may occur. Default: none; only the latencies and the order of
            independent events vary.
        limit_s: The virtual time after which the program counts as stuck, in seconds.

    Yields:
        The cluster, with its `hosts`.

    Raises:
        RuntimeError: The code runs in a simulation already.
        SimulationStuck: The program waits for something that will never happen.
        SimulatedProgramFailed: An unhandled failure would end the program.
    """
    if running_thread() is not None:
        raise RuntimeError("this code runs in a simulation already: a simulation has no others")
    world = World(seed, limit_s)
    draw = random.Random(seed ^ 0x5EED)
    real = ProcessGlobals.of_this_process()
    states, had_gc = random_states(), gc.isenabled()
    gc.disable()
    random.seed(seed)
    try:
        with simulated_standard_library(seed), simulated_functions(), simulated_output():
            mailbox = None if faults is None else mailbox_len(faults, draw)
            try:
                program, mesh = _start(world, hosts, standby, mailbox)
                if faults is not None:
                    inject(faults, world, draw)
                yield SimulatedCluster(seed, world, mesh)
                program.end()
            finally:
                world.close()
    finally:
        real.activate()
        restore_random_states(states)
        if had_gc:
            gc.enable()
