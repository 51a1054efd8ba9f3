"""A run: continuous calls to all hosts, a sequence of moves, and the totals at the end."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.chaos.ledger import Balance, Ledger
from tests.hosts.chaos.recovery import percentile
from tests.hosts.cluster import Program, WorkerCluster
from tests.hosts.drains import service
from tests.hosts.world import World

#: How long the last calls may take after the last move, in seconds.
END_LIMIT_S = 60.0
#: Concurrent calls to each host.
CALLERS = 2
#: How often a line is printed.
REPORT_EVERY = 100


@dataclass(frozen=True)
class Verdict:
    """The result of a run."""

    balance: Balance
    kept: bool
    """Whether the state of every actor contains all calls that it has executed."""
    drain_s: Sequence[float]
    """How long each move took, in ascending order."""
    pause_s: Sequence[float]
    """The longest call during each move, in ascending order."""
    state_bytes: int
    """The state of a host, in addition to what its actors record."""
    copy_s: float
    """How long a copy of the state of a host takes within the memory of a process, in seconds."""

    @property
    def is_right(self) -> bool:
        """Whether every call was replied to, and executed once by an actor that kept its state."""
        return self.balance.is_right and not self.balance.failed and self.kept

    def __str__(self) -> str:
        kept = "kept" if self.kept else "LOST"
        text = (
            f"{self.balance}\nstate       {kept:>9}\n\n{len(self.drain_s)} moves\n"
            f"{_line('move, ms', self.drain_s)}\n{_line('longest call, ms', self.pause_s)}"
        )
        if self.state_bytes:
            size = f"{self.state_bytes >> 20} MiB"
            text += f"\neach moves {size}, which memcpy copies in {self.copy_s * 1e3:.0f} ms"
        return text


def run(
    drains: int, seed: int, state_bytes: int = 0, say: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Move hosts in random order while calls are made to all of them.

    Args:
        drains: The number of moves.
        seed: Selects the hosts.
        state_bytes: The size of the state of each actor; a multiple of 1 MiB.
        say: Receives a line of text at intervals.
    """
    names = ["client", "w0", "w1", "w2", "spare"]
    with tempfile.TemporaryDirectory(prefix="drains-") as name:
        folder = Path(name)
        for part in ("keys", "done"):
            (folder / part).mkdir()
        with (
            World(names, shared=[folder]) as world,
            WorkerCluster(world, folder / "keys") as cluster,
            cluster.program() as program,
        ):
            *addresses, spare = cluster.addresses()
            program.do(
                service.open_service, addresses, cluster.keys, str(folder), spare, state_bytes
            )
            return _Run(program, len(addresses), folder, state_bytes).run_to_end(drains, seed, say)


class _Run:
    def __init__(self, program: Program, hosts: int, folder: Path, state_bytes: int) -> None:
        self._program = program
        self._hosts = hosts
        self._folder = folder
        self._host_bytes = state_bytes * service.PROCS
        self._ledger = Ledger()
        self._is_over = threading.Event()
        # The longest call to each host since it was last read, and the number of calls.
        self._longest_s = [0.0] * hosts
        self._counts = [0] * hosts
        self._called = threading.Condition()

    def run_to_end(self, drains: int, seed: int, say: Callable[[str], None]) -> Verdict:
        threads = [
            threading.Thread(target=self._call, args=(host,), daemon=True)
            for host in range(self._hosts)
            for _ in range(CALLERS)
        ]
        for thread in threads:
            thread.start()
        chance = random.Random(seed)
        drain_s, pause_s = [], []
        for number in range(1, drains + 1):
            host = chance.randrange(self._hosts)
            self._longest_s[host] = 0.0
            drain_s.append(self._program.do(service.drain, host))
            pause_s.append(self._longest_call(host))
            if number % REPORT_EVERY == 0:
                say(f"{number} moves")
        self._is_over.set()
        until = time.monotonic() + END_LIMIT_S
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))
        executions: Counter[int] = Counter()
        lines = []
        for rank in range(self._hosts * service.PROCS):
            file = self._folder / "done" / f"rank-{rank}"
            numbers = [int(line) for line in file.read_text().split()] if file.exists() else []
            executions.update(numbers)
            lines.append(len(numbers))
        kept = self._program.do(service.counts) == lines and self._program.do(service.have_state)
        return Verdict(
            self._ledger.balance(executions),
            kept,
            sorted(drain_s),
            sorted(pause_s),
            self._host_bytes,
            self._program.do(service.copy_s, self._host_bytes),
        )

    def _longest_call(self, host: int) -> float:
        """Return the duration of the longest call, after those in progress have ended."""
        with self._called:
            last = self._counts[host] + 2 * CALLERS
            self._called.wait_for(lambda: self._counts[host] >= last, END_LIMIT_S)
        return self._longest_s[host]

    def _call(self, host: int) -> None:
        while not self._is_over.is_set():
            number, sent = self._ledger.send(), time.monotonic()
            try:
                error = self._program.do(service.note, number, host)
            except Exception as raised:
                error = repr(raised)
            if error is None:
                self._ledger.answer(number)
            else:
                self._ledger.fail(number, error, is_typed=True)
            with self._called:
                self._longest_s[host] = max(self._longest_s[host], time.monotonic() - sent)
                self._counts[host] += 1
                self._called.notify_all()


def _line(name: str, times: Sequence[float]) -> str:
    cells = [f"p{one} {percentile(times, one) * 1e3:.0f}" for one in (50, 90, 99)]
    return f"{name:<18}{'   '.join(cells)}   longest {times[-1] * 1e3:.0f}"
