"""A host under test with a record of its reports, and queries to the kernel."""

import os
import select
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mesh_core._logging.line import LogLine
from mesh_core._processes.command import BootstrapCommand
from mesh_core._processes.exit_report import ExitReport
from mesh_core._processes.local_host import LocalHost
from mesh_core._processes.process_spec import ProcSpec

LIMIT_S = 30.0

FOREVER = "import signal\nprint('up', flush=True)\nwhile True: signal.pause()"


class Recorder:
    """A host and all reports that it has sent."""

    def __init__(self, directory: Path, **options: object) -> None:
        self.changed = threading.Condition()
        self.lines: list[LogLine] = []
        self.exits: list[ExitReport] = []
        self.pids: dict[tuple[int, int], int] = {}
        self.job_dir = directory / "job"
        self.job_dir.mkdir()
        (self.job_dir / "socket").touch()
        self.react: Callable[[ExitReport], None] = lambda report: None
        self.host = LocalHost(
            self.job_dir,
            on_exit=self._on_exit,
            on_log=self._on_log,
            on_start=self._on_start,
            launch="launch_for_test",
            **options,  # type: ignore[arg-type]
        )

    def _on_exit(self, report: ExitReport) -> None:
        with self.changed:
            self.exits.append(report)
            self.changed.notify_all()
        self.react(report)

    def _on_start(self, slot: int, incarnation: int, pid: int) -> None:
        with self.changed:
            self.pids[slot, incarnation] = pid
            self.changed.notify_all()

    def _on_log(self, line: LogLine) -> None:
        with self.changed:
            self.lines.append(line)
            self.changed.notify_all()

    def spawn(
        self,
        program: str,
        count: int = 1,
        *,
        first: int = 1,
        incarnation: int = 0,
        preload: Sequence[str] = (),
        command: BootstrapCommand | None = None,
        env: Mapping[str, str | None] | None = None,
        bind: Mapping[str, str] | None = None,
    ) -> None:
        entry = textwrap.dedent(program).encode()
        specs = [
            ProcSpec(
                slot=first + rank,
                incarnation=incarnation,
                name=f"job{{n: {rank}/{count}}}",
                entry=entry,
                command=command,
                env=env or {},
                bind=bind,
            )
            for rank in range(count)
        ]
        self.host.spawn(specs, preload)

    def wait(self, is_true: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(is_true, LIMIT_S), (self.lines, self.exits)

    def pid(self, slot: int, incarnation: int = 0) -> int:
        """Wait for the start of a process and return its pid."""
        self.wait(lambda: (slot, incarnation) in self.pids)
        return self.pids[slot, incarnation]

    def wait_for_exits(self, count: int) -> list[ExitReport]:
        self.wait(lambda: len(self.exits) >= count)
        return sorted(self.exits, key=lambda report: (report.slot, report.incarnation))

    def wait_for_lines(self, count: int, prefix: str = "") -> list[str]:
        self.wait(lambda: len(self.texts(prefix)) >= count)
        return self.texts(prefix)

    def texts(self, prefix: str = "") -> list[str]:
        return [line.text for line in self.lines if line.text.startswith(prefix)]

    def output(self, program: str, **options: object) -> list[str]:
        """Run a program in one process and return its output."""
        before = len(self.exits)
        self.spawn(program, **options)  # type: ignore[arg-type]
        self.wait_for_exits(before + 1)
        assert self.host.flush(LIMIT_S)
        assert self.exits[-1].exit_code == 0, self.exits[-1]
        return [line.text for line in self.lines if line.slot == self.exits[-1].slot]


def wait_until_gone(pids: Sequence[int], limit_s: float = LIMIT_S) -> None:
    """Wait for the exit of processes, whether they are children or not."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(limit_s * 1000), f"process {pid} is still alive: {command_line(pid)}"
        os.close(handle)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if parent(int(path.name)) == pid:
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
