"""The nox sessions of `python3 -m tools test`, their schedule, and the report."""

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
from tools.processor_time import machine_times
from tools.workspace import ROOT, clone_folder

#: Time limit of a session in seconds; a session that exceeds it is stopped and has failed.
SESSION_LIMIT_S = 2100

#: Maximum number of tests that may fail once and pass when run again; more indicate a common cause.
UNSTEADY_MAX = 1

#: Number of concurrent sessions. Most of them wait more than they compute, so two of them do not
#: keep two processors busy; with four, tests with deadlines become too slow.
CONCURRENT_MAX = 3


@dataclass(frozen=True)
class Session:
    """A nox session and the arguments after its `--`."""

    name: str
    args: tuple[str, ...] = ()


#: Programs on few hosts with arbitrary faults.
SMALL = Session("sim", ("--seeds", "20"))
#: Casts over many hosts, some of which die: small enough for every change.
LARGE = Session("sim", ("--actors", "4000", "--deaths", "100", "--seeds", "2"))

#: Needs no wheels, so it runs while they are built, which takes minutes and often one processor.
RUST = Session("rust")

#: Sessions that run concurrently. The longest ones are first, so that none of them is left over at
#: the end.
SHARED: tuple[Session, ...] = (
    Session("telemetry"),
    Session("jobs"),
    Session("fs"),
    Session("tests(mesh-core)"),
    Session("tensor"),
    Session("verbs"),
    Session("rdma"),
    Session("slurm"),
    Session("hosts"),
    Session("chaos", ("--minutes", "0.5")),
    Session("diagnose", ("-m", "not slow")),
    Session("reproduce"),
    Session("campaign"),
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

#: Slow variants of tests, for a run each night.
SLOW: tuple[Session, ...] = (
    *(
        Session(name, ("-m", "slow"))
        for name in ("telemetry", "jobs", "fs", "tensor", "rdma", "slurm", "hosts", "security")
    ),
    Session("tests(mesh-core)", ("packages/mesh-core/tests", "-m", "slow")),
)

#: Sessions that run alone after the others, because they count system calls.
ALONE: tuple[Session, ...] = (Session("bench", ("counts", "--check")),)


def nox_command(args: Sequence[str]) -> list[str]:
    """Return the nox command with environments of this clone, outside the repository."""
    envs = clone_folder() / "nox"
    return [
        toolbox.program("nox"),
        "--noxfile",
        str(ROOT / "noxfile.py"),
        "--envdir",
        str(envs),
        *args,
    ]


def run(
    early: Sequence[Session] = (RUST,),
    shared: Sequence[Session] = SHARED,
    alone: Sequence[Session] = ALONE,
) -> int:
    """Run all sessions, even after a failure, and return the exit status."""
    started = time.monotonic()
    times = machine_times()
    # A whole run compiles each crate once: data for incremental compilation would only cost time.
    os.environ.setdefault("CARGO_INCREMENTAL", "0")
    # Several sessions need these, so they are prepared before any session would wait for another.
    setup = [
        Job("wheels", [sys.executable, "-m", "tools", "wheels"], SESSION_LIMIT_S),
        Job("system packages", [sys.executable, "-m", "tools.system"], SESSION_LIMIT_S),
        *(_job(session) for session in early),
    ]
    outcomes = _run_concurrently(setup, len(setup), live=True)
    if not any(outcome.failed for outcome in outcomes[:2]):
        outcomes += _run_concurrently([_job(session) for session in shared], CONCURRENT_MAX)
        outcomes += _run_concurrently([_job(session) for session in alone], 1, live=True)
    busy_s, idle_s = (now - before for now, before in zip(machine_times(), times, strict=True))
    _report(outcomes, time.monotonic() - started, busy_s / (busy_s + idle_s))
    is_well = not any(outcome.failed for outcome in outcomes)
    return 0 if is_well and len(unsteady(outcomes)) <= UNSTEADY_MAX else 1


def _run_concurrently(jobs: Sequence[Job], workers: int, *, live: bool = False) -> list[Outcome]:
    """Run jobs in order, at most `workers` at a time, and return the outcomes in that order."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    outcomes: dict[Job, Outcome] = {}

    def run_worker() -> None:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            outcomes[job] = job.run(live=live)

    with ThreadPoolExecutor(workers) as threads:
        try:
            for done in [threads.submit(run_worker) for _ in range(workers)]:
                done.result()
        except BaseException:
            # Ctrl-C reaches only this process: the jobs run in separate sessions.
            for job in jobs:
                job.stop()
            raise
    return [outcomes[job] for job in jobs]


def _job(session: Session) -> Job:
    args = ["--session", session.name, "--non-interactive"]
    command = nox_command([*args, "--", *session.args] if session.args else args)
    return Job(session.name, command, SESSION_LIMIT_S)


def _report(outcomes: Sequence[Outcome], seconds: float, busy: float) -> None:
    width = max(len(outcome.name) for outcome in outcomes)
    print(f"\n{'session':<{width}}  result  seconds  processor seconds")
    for outcome in outcomes:
        result = "failed" if outcome.failed else "passed"
        times = f"{outcome.seconds:7.1f}  {outcome.cpu_seconds:17.1f}"
        print(f"{outcome.name:<{width}}  {result}  {times}")
    print(f"{'all':<{width}}          {seconds:7.1f}  processors {busy:.0%} busy\n")
    for line in closing_lines(outcomes):
        print(line)
    sys.stdout.flush()
