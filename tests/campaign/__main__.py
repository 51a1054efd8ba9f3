"""Inject failures into training on emulated hosts: `python -m tests.campaign --failures 50`."""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.campaign import steps
from tests.campaign.ledger import Entry, draw, table, write
from tests.hosts.cluster.cluster import WorkerCluster
from tests.hosts.cluster.program import Program
from tests.hosts.memory_cgroup import create_memory_cgroup
from tests.hosts.world import World
from tests.hosts.world.fault import Fault
from tests.hosts.world.host import Host
from tests.hosts.world.possible import why_not

HOSTS, STANDBY = 4, 2
#: Faults that a rank injects into itself.
OWN = ("kill", "segfault", "stop", "hang", "hang_in_collective", "exception", "damaged_copies")
#: Faults of hosts, which are repaired afterwards.
OF_HOSTS = ("power_cut", "partition")
#: How often each kind occurs among twenty failures.
WEIGHTS = {
    **dict.fromkeys(OWN, 2),
    "memory": 1,
    "full_disk": 1,
    "power_cut": 2,
    "partition": 2,
}
STEP_LIMIT_S = 120.0
FINISH_LIMIT_S = 3600.0
MEMORY_LIMIT = 64 << 20
DISK_BYTES = 24 << 20


class Campaign:
    """Training on emulated hosts, and the faults that can be injected into it."""

    def __init__(
        self, world: World, cluster: WorkerCluster, program: Program, folder: Path
    ) -> None:
        self.cluster = cluster
        self._world = world
        self._program = program
        self._folder = folder
        self._names = {host.name: host for host in cluster.hosts}

    def inject(self, kind: str, rank: int) -> Callable[[], None]:
        """Inject a fault; return the function that repairs its cause after the recovery."""
        if kind in OF_HOSTS:
            return self._fault_of_host(kind, rank)
        repair: Callable[[], None] = _nothing
        if kind == "memory":
            repair = self._limit_memory(rank)
        elif kind == "full_disk":
            filler = self._folder / "disk" / "filler"
            _fill(filler)
            repair = filler.unlink
            kind = "kill"
        self.request(rank, kind)
        return repair

    def request(self, rank: int, fault: str) -> None:
        """Let a rank inject a fault before its next step."""
        written = self._folder / "faults" / f"{rank}.new"
        written.write_text(fault)
        written.rename(self._folder / "faults" / f"{rank}.fault")

    def _fault_of_host(self, kind: str, rank: int) -> Callable[[], None]:
        host = self._names[self._program.do(steps.host_names)[rank]]
        fault: Fault
        if kind == "power_cut":
            fault = self._world.faults.power_cut(host)
        else:
            fault = self._world.faults.partition([host])

        def repair() -> None:
            fault.heal()
            self._return(host)

        return repair

    def _return(self, host: Host) -> None:
        """Make a host available as a standby worker again."""
        if not self.cluster.worker(host).is_alive:
            self.cluster.start_worker(host)
        self._program.do(steps.add_standby, self.cluster.addresses([host]))

    def _limit_memory(self, rank: int) -> Callable[[], None]:
        """Put a rank into a memory cgroup that it will exceed."""
        host = self._names[self._program.do(steps.host_names)[rank]]
        (pid,) = self.cluster.worker(host).outer([self._program.do(steps.pid, rank)])
        cgroup = create_memory_cgroup(f"mesh-campaign-{os.getpid()}", MEMORY_LIMIT)
        (cgroup / "cgroup.procs").write_text(str(pid))
        return cgroup.rmdir


def _nothing() -> None:
    pass


def _fill(path: Path) -> None:
    """Use all space of the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


def run(
    campaign: Campaign, program: Program, failures: int, seed: int, limit_s: float
) -> list[Entry]:
    """Inject failures in sequence, each after some steps; return one entry for each."""
    choice = random.Random(seed)
    kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
    entries: list[Entry] = []
    program.do(steps.begin)
    began = time.time()
    while len(entries) < failures and time.time() - began < limit_s:
        kind, rank = choice.choice(kinds), choice.randrange(HOSTS)
        step = program.begin(steps.wait_for_steps, choice.randint(1, 4), STEP_LIMIT_S).result()
        known = program.do(steps.recovery_count)
        injected_at = time.time()
        repair = campaign.inject(kind, rank)
        found = program.begin(steps.wait_for_recovery, known, STEP_LIMIT_S).result()
        repair()
        entries.append(
            Entry(
                len(entries),
                kind,
                rank,
                tuple(one.kind for one in found),
                step,
                max(one.lost_steps for one in found),
                found[-1].source,
                sum(one.damaged_copies for one in found),
                found[0].reported_at - injected_at,
                found[-1].reported_at + found[-1].recovery_s - found[0].reported_at,
            )
        )
        if len(entries) % 10 == 0:
            print(f"{len(entries)} failures, step {step}, {time.time() - began:.0f} s", flush=True)
    return entries


@contextmanager
def started() -> Iterator[tuple[WorkerCluster, World, Path]]:
    """Start the hosts, with a folder that they share and a small disk in it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mesh-campaign-")))
        for name in ("faults", "disk"):
            (folder / name).mkdir()
        disk = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder / "disk")]
        subprocess.run(disk, check=True)
        stack.callback(subprocess.run, ["umount", "-l", str(folder / "disk")], check=False)
        names = ["client", *(f"w{number}" for number in range(HOSTS + STANDBY))]
        world = World(names, shared=[folder, folder / "disk"])
        stack.callback(world.close)
        yield stack.enter_context(WorkerCluster(world, folder)), world, folder


def main() -> int:
    """Run a campaign; return 0 if all failures were recovered from and the weights are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=int, default=50)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="inject no failure after this time"
    )
    parser.add_argument("--seed", type=int, default=7, help="the same failures for the same seed")
    parser.add_argument("--output", type=Path, help="where to write the ledger and the picture")
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    with started() as (cluster, world, folder):
        where = (cluster.addresses(), STANDBY, cluster.keys, str(folder / "faults"))
        with cluster.program() as program:
            program.begin(steps.start, *where, str(folder / "disk")).result()
            campaign = Campaign(world, cluster, program, folder)
            limit_s = 60 * options.minutes
            entries = run(campaign, program, options.failures, options.seed, limit_s)
            last, digest, losses = program.begin(steps.finish, 0, FINISH_LIMIT_S).result()
            program.do(steps.end)
        cluster.repair()
        with cluster.program() as program:
            program.begin(steps.start, *where, "").result()
            alone = program.begin(steps.finish, last, FINISH_LIMIT_S).result()
            _, expected, undisturbed = alone
            program.do(steps.end)
    print(f"\n{table(entries)}\n")
    repeated = sum(one.lost_steps for one in entries)
    print(f"{len(entries)} of {options.failures} failures recovered from, in {last} steps")
    print(f"{repeated} steps repeated, {100 * repeated / last:.2f}% of all")
    is_equal = digest == expected
    print(f"weights {'equal' if is_equal else 'DIFFER from'} those of the undisturbed run")
    if options.output is not None:
        summary = {"seed": options.seed, "steps": last, "equal_weights": is_equal}
        write(options.output, summary, entries)
        marks = [one.step for one in entries]
        draw(options.output / "campaign.svg", losses, undisturbed, marks)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
