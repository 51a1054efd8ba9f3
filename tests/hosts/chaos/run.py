"""A chaos run: load on all hosts, a fault at fixed intervals, and the totals at the end."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.busy import spinning
from tests.hosts.chaos.fault_kinds import FAULT_KINDS, PlannedFault, planned_faults
from tests.hosts.chaos.ledger import Balance, Ledger
from tests.hosts.chaos.load import Load
from tests.hosts.chaos.recovery import Recovery, table
from tests.hosts.chaos.workload import Workload
from tests.hosts.world import Host, World


@dataclass(frozen=True)
class Settings:
    """Duration, intensity and random seed of a run."""

    seconds: float = 60.0
    seed: int = 0
    hosts: int = 4
    """The first of them makes the calls."""
    concurrency: int = 2
    """The number of concurrent calls to each host."""
    every_s: float = 3.0
    """The interval between faults, unless one lasts longer."""
    hold_max_s: float = 2.5
    """The maximum duration of a fault."""
    without: tuple[str, ...] = ()
    """Kinds of faults to exclude."""
    spinners: int = 0
    """The number of CPU-bound processes."""
    hang_s: float = 30.0
    """Time limit for the first reply of a host after a fault is healed, and for a call."""


@dataclass(frozen=True)
class Verdict:
    """The result of a run."""

    balance: Balance
    times: Mapping[str, Sequence[float]]
    """The recovery times in seconds, by kind of fault."""
    silent: Sequence[str]
    """Hosts that never replied again, each with the preceding fault."""
    faults: int
    misjudged: Mapping[str, int]
    """How often each host was declared dead although its power was not cut."""

    @property
    def is_right(self) -> bool:
        """Whether no call was lost, executed twice or hung, and no living host declared dead."""
        return self.balance.is_right and not self.silent and not self.misjudged

    def __str__(self) -> str:
        silent = ", ".join(self.silent) or "none"
        misjudged = ", ".join(f"{name} {n} times" for name, n in self.misjudged.items()) or "none"
        return (
            f"{table(self.times)}\n\n{self.balance}\n\nnever back: {silent}\n"
            f"alive, but declared dead: {misjudged}"
        )


def run(
    workload: Workload, settings: Settings, say: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Create a world, inject faults while a workload runs in it, and evaluate the outcome.

    Args:
        workload: The workload. It must not be started yet.
        settings: Duration and intensity of the run.
        say: Receives one line of text for every fault.
    """
    names = [f"h{number}" for number in range(settings.hosts)]
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        with World(names, shared=[folder]) as world, spinning(settings.spinners):
            workload.start(world, folder)
            try:
                return _Run(world, workload, settings, say).run_to_end()
            finally:
                workload.stop()


class _Run:
    """A run in progress."""

    def __init__(
        self, world: World, workload: Workload, settings: Settings, say: Callable[[str], None]
    ) -> None:
        self._world = world
        self._workload = workload
        self._settings = settings
        self._say = say
        self._servers = world.hosts[1:]
        self._ledger = Ledger()
        self._recovery = Recovery()
        self._power_cuts: Counter[str] = Counter()
        self._pause = threading.Event()

    def run_to_end(self) -> Verdict:
        load = Load(self._workload, self._ledger, self._recovery)
        for host in self._servers:
            load.start(host, self._settings.concurrency)
        faults = self._inject_all()
        silent = self._recovery.wait(self._settings.hang_s)
        load.stop(self._settings.hang_s)
        balance = self._ledger.balance(self._workload.executions())
        # A power cut ends a host once. Any further death is a live host that was declared dead.
        misjudged = Counter(self._workload.declared_dead()) - self._power_cuts
        return Verdict(balance, self._recovery.times(), silent, faults, misjudged)

    def _inject_all(self) -> int:
        """Inject faults in sequence until the time is over, and return their number."""
        started, faults = time.monotonic(), 0
        end = started + self._settings.seconds
        settings = self._settings
        for planned in planned_faults(
            settings.seed, len(self._servers), settings.hold_max_s, settings.without
        ):
            due = started + self._settings.every_s * (faults + 1)
            self._pause.wait(max(min(due, end) - time.monotonic(), 0))
            if due > end:
                break
            # A host that does not recover would fail the run anyway, so there is nothing more to
            # learn.
            if self._recovery.wait(self._settings.hang_s):
                break
            self._inject(planned, time.monotonic() - started)
            faults += 1
        return faults

    def _inject(self, planned: PlannedFault, at_s: float) -> None:
        """Inject a fault, heal it, and record the time of the healing."""
        kind, host = FAULT_KINDS[planned.kind], self._servers[planned.number]
        affected: Sequence[Host] = self._servers if kind.affects_all_hosts else [host]
        hosts = [one.name for one in affected]
        with kind.inject(self._world, host, self._workload, planned.chance) as fault:
            span = f" for {planned.hold_s:.2f} s" if kind.is_lasting else ""
            self._say(f"{at_s:7.1f} s  {fault.name}{span}")
            self._power_cuts.update(one.name for one in affected if not one.is_on)
            self._pause.wait(planned.hold_s if kind.is_lasting else 0)
        healed = time.monotonic()
        if kind.needs_restore:
            self._workload.restore(host)
        self._recovery.expect(planned.kind, hosts, healed)
