"""The kinds of faults, and a seeded random choice among them."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.chaos.workload import Workload
from tests.hosts.world import Fault, Host, World

#: Minimum duration of a fault that is not instantaneous.
HOLD_MIN_S = 0.05

#: Parameters of a slow link and of a link with high latency.
SLOW_BITS_PER_S = 2_000_000
LONG_S = 0.1

#: Folders of a host that are file systems with a size limit.
FULL_FOLDERS = ("/tmp", "/dev/shm")

#: Switches to another user and holds as many connections as it can get.
_FLOOD = """
import os, socket, sys

os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
while True:
    held = []
    for _ in range(200):
        connection = socket.socket()
        connection.settimeout(1.0)
        held.append(connection)
        try:
            connection.connect(("127.0.0.1", int(sys.argv[1])))
            connection.send(b"\\x16\\x03")
        except OSError:
            break
    for connection in held:
        connection.close()
"""


@dataclass(frozen=True)
class PlannedFault:
    """A fault that has not been injected yet."""

    kind: str
    number: int
    """The index of the host, not counting the first."""
    hold_s: float
    chance: float
    """A random number between 0 and 1, for all other choices."""


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault."""

    inject: Callable[[World, Host, Workload, float], Fault]
    is_lasting: bool = True
    """Whether it lasts until it is healed; otherwise it is instantaneous."""
    needs_restore: bool = False
    """Whether the workload must restore something afterwards."""
    affects_all_hosts: bool = False
    """Whether it affects all hosts and not one."""


def planned_faults(
    seed: int, hosts: int, hold_max_s: float, without: Collection[str] = ()
) -> Iterator[PlannedFault]:
    """Yield faults without end. Every kind occurs once before any kind occurs again.

    Durations are drawn on a logarithmic scale, so that short faults are as likely as long ones.
    """
    chance = random.Random(seed)
    while True:
        kinds = sorted(FAULT_KINDS.keys() - set(without))
        chance.shuffle(kinds)
        for kind in kinds:
            hold_s = HOLD_MIN_S * (hold_max_s / HOLD_MIN_S) ** chance.random()
            yield PlannedFault(kind, chance.randrange(hosts), hold_s, chance.random())


def _kill(world: World, host: Host, workload: Workload, chance: float) -> Fault:
    pid = _victim(workload.victims(host), chance)
    _signal(pid, signal.SIGKILL)
    return Fault(f"kill of {pid} on {host.name}", lambda: None)


def _stop(world: World, host: Host, workload: Workload, chance: float) -> Fault:
    pid = _victim(workload.victims(host), chance)
    _signal(pid, signal.SIGSTOP)
    return Fault(f"stop of {pid} on {host.name}", lambda: _signal(pid, signal.SIGCONT))


def _stop_any(world: World, host: Host, workload: Workload, chance: float) -> Fault:
    """Stop any process: a worker, its session, a supervisor, a template or one with an actor."""
    pid = _victim(host.pids(), chance)
    name = _name_of(pid)
    _signal(pid, signal.SIGSTOP)
    return Fault(f"stop of {name} {pid} on {host.name}", lambda: _signal(pid, signal.SIGCONT))


def _no_descriptors(world: World, host: Host, workload: Workload, chance: float) -> Fault:
    """Prevent all processes of a host from opening more descriptors."""
    before: dict[int, tuple[int, int]] = {}
    for pid in host.pids():
        with suppress(OSError):
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            count = len(os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(count, limits[0]), limits[1]))
            before[pid] = limits

    def heal() -> None:
        for pid, limits in before.items():
            with suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

    return Fault(f"no descriptors on {host.name}", heal)


def _no_space(world: World, host: Host, workload: Workload, chance: float) -> Fault:
    """Fill the folders for temporary files and shared memory of a host."""
    for folder in FULL_FOLDERS:
        used = host.run(["df", "-k", "--output=used", folder]).stdout.split()[-1]
        _resize(host, folder, f"{max(int(used), 4)}k")

    def heal() -> None:
        if host.is_on:
            for folder in FULL_FOLDERS:
                _resize(host, folder, "50%")

    return Fault(f"no space on {host.name}", heal)


def _resize(host: Host, folder: str, size: str) -> None:
    # The kernel refuses if more was written since the size was read; the folder is as full then.
    host.run(["mount", "-n", "-o", f"remount,size={size}", folder], check=False)


def _flood(world: World, host: Host, workload: Workload, chance: float) -> Fault:
    """Let another user of the host open connections to the service continuously."""
    attacker = host.start_python(_FLOOD, str(workload.port))

    def heal() -> None:
        attacker.kill()
        attacker.wait()

    return Fault(f"flood by another user of {host.name}", heal)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "process"


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _victim(pids: Sequence[int], chance: float) -> int:
    assert pids, "no process to kill"
    return sorted(pids)[int(chance * len(pids))]


def _client(world: World) -> Host:
    return world.hosts[0]


FAULT_KINDS: dict[str, FaultKind] = {
    "kill": FaultKind(_kill, is_lasting=False, needs_restore=True),
    "stop": FaultKind(_stop),
    "stop any": FaultKind(_stop_any),
    "no descriptors": FaultKind(_no_descriptors),
    "no space": FaultKind(_no_space),
    "flood": FaultKind(_flood),
    "pause": FaultKind(lambda world, host, *_: world.faults.pause(host)),
    "partition": FaultKind(lambda world, host, *_: world.faults.partition([host])),
    "drop one way": FaultKind(
        lambda world, host, *_: world.faults.drop(host, _client(world), is_one_way=True)
    ),
    "link down": FaultKind(lambda world, host, *_: world.faults.link_down(host)),
    "reset": FaultKind(lambda world, host, *_: world.faults.reset(_client(world), host)),
    "reset once": FaultKind(
        lambda world, host, *_: world.faults.reset_once(_client(world), host), is_lasting=False
    ),
    "loss": FaultKind(lambda world, *_: world.faults.loss(20), affects_all_hosts=True),
    "slow link": FaultKind(lambda world, host, *_: world.faults.bandwidth(host, SLOW_BITS_PER_S)),
    "long link": FaultKind(
        lambda world, host, _, chance: world.faults.delay(
            _client(world), host, LONG_S * chance, jitter_s=LONG_S / 10
        )
    ),
    "power cut": FaultKind(
        lambda world, host, *_: world.faults.power_cut(host), needs_restore=True
    ),
}
