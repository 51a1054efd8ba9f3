"""Which nox sessions `python3 -m tools test` runs, how they share the machine, and the report."""

import os
import queue
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tools import toolbox
from tools.closing import closing_lines, unsteady
from tools.job import Job, Outcome
from tools.workspace import ROOT, clone_folder

#: Longest that one session may take; then it is stopped and has failed.
SESSION_LIMIT_S = 2100

#: How many tests may fail once and pass when run again: beyond that something is wrong with all.
UNSTEADY_MAX = 8

#: Sessions that run at the same time. Most of them wait more than they compute: three of them leave
#: a fifth of two processors idle.
CONCURRENT_MAX = 4


@dataclass(frozen=True)
class Session:
    """A nox session and the arguments after its `--`."""

    name: str
    args: tuple[str, ...] = ()


#: Programs on few hosts, where anything may happen.
SMALL = Session("sim", ("--seeds", "50"))
#: Casts over many hosts, some of which die: small enough for every change.
LARGE = Session("sim", ("--actors", "4000", "--deaths", "100", "--seeds", "3"))

#: Sessions that share the machine. The longest ones come first, so that none of them is left over
#: when the others have ended; `rust` is the first because it compiles what others need.
SHARED: tuple[Session, ...] = (
    Session("rust"),
    Session("telemetry"),
    Session("jobs"),
    Session("fs"),
    Session("tests(mesh-core)"),
    Session("tensor"),
    Session("verbs"),
    Session("rdma"),
    Session("slurm"),
    Session("hosts"),
    Session("docs"),
    Session("readme"),
    Session("examples"),
    Session("security"),
    Session("types"),
    Session("fuzz"),
    Session("layers"),
    Session("kube"),
    Session("tests(across)"),
    Session("soak"),
    Session("lint"),
    SMALL,
    LARGE,
)

#: Sessions that run alone, after the others: they count system calls, or keep the machine busy.
ALONE: tuple[Session, ...] = (
    Session("bench", ("counts", "--check")),
    Session("chaos", ("--minutes", "0.5")),
)


def nox_command(args: Sequence[str]) -> list[str]:
    """Returns the command that runs nox with environments of this clone's own, outside the tree."""
    envs = clone_folder() / "nox"
    return [
        toolbox.program("nox"),
        "--noxfile",
        str(ROOT / "noxfile.py"),
        "--envdir",
        str(envs),
        *args,
    ]


def run(shared: Sequence[Session] = SHARED, alone: Sequence[Session] = ALONE) -> int:
    """Runs all sessions, also after a failure, and returns the exit status."""
    started = time.monotonic()
    # A whole run compiles each crate once: data for the next compilation would only cost time.
    os.environ.setdefault("CARGO_INCREMENTAL", "0")
    # Several sessions need each of these, so they are there before any of them waits for another.
    setup = [
        Job("wheels", [sys.executable, "-m", "tools", "wheels"], SESSION_LIMIT_S),
        Job("system packages", [sys.executable, "-m", "tools.system"], SESSION_LIMIT_S),
    ]
    outcomes = _run_side_by_side(setup, len(setup), live=True)
    if not any(outcome.failed for outcome in outcomes):
        outcomes += _run_side_by_side([_job(session) for session in shared], CONCURRENT_MAX)
        outcomes += _run_side_by_side([_job(session) for session in alone], 1, live=True)
    _report(outcomes, time.monotonic() - started)
    is_well = not any(outcome.failed for outcome in outcomes)
    return 0 if is_well and len(unsteady(outcomes)) <= UNSTEADY_MAX else 1


def _run_side_by_side(jobs: Sequence[Job], lanes: int, *, live: bool = False) -> list[Outcome]:
    """Runs jobs in their order, so many at a time, and returns the outcomes in that order."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    outcomes: dict[Job, Outcome] = {}

    def run_lane() -> None:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            outcomes[job] = job.run(live=live)

    with ThreadPoolExecutor(lanes) as threads:
        try:
            for done in [threads.submit(run_lane) for _ in range(lanes)]:
                done.result()
        except BaseException:
            # Ctrl-C reaches only this process: the jobs are in sessions of their own.
            for job in jobs:
                job.stop()
            raise
    return [outcomes[job] for job in jobs]


def _job(session: Session) -> Job:
    args = ["--session", session.name, "--non-interactive"]
    command = nox_command([*args, "--", *session.args] if session.args else args)
    return Job(session.name, command, SESSION_LIMIT_S)


def _report(outcomes: Sequence[Outcome], seconds: float) -> None:
    width = max(len(outcome.name) for outcome in outcomes)
    print(f"\n{'session':<{width}}  result  seconds  processor seconds")
    for outcome in outcomes:
        result = "failed" if outcome.failed else "passed"
        times = f"{outcome.seconds:7.1f}  {outcome.cpu_seconds:17.1f}"
        print(f"{outcome.name:<{width}}  {result}  {times}")
    print(f"{'all':<{width}}          {seconds:7.1f}\n")
    for line in closing_lines(outcomes):
        print(line)
    sys.stdout.flush()
