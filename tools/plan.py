"""The nox sessions of `python3 -m tools test`, their schedule, and the report."""

import os
import sys
import time
from collections import deque
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

#: Number of concurrent sessions of each kind. With one more, tests with deadlines become too slow.
SHARED_MAX = 2
WAITING_MAX = 1


@dataclass(frozen=True)
class Session:
    """A nox session and the arguments after its `--`."""

    name: str
    args: tuple[str, ...] = ()


#: Programs on few hosts with arbitrary faults.
SMALL = Session("sim", ("--seeds", "10"))
#: Casts over many hosts, some of which die; the size is small enough to run for every change.
LARGE = Session("sim", ("--actors", "4000", "--deaths", "100", "--seeds", "1"))

#: Needs no wheels, so it runs while they are built, which takes minutes and often one processor.
RUST = Session("rust")

#: Sessions that use the processors most of the time. The longest sessions are first, so that none
#: of them still runs alone at the end.
SHARED: tuple[Session, ...] = (
    Session("telemetry"),
    Session("jobs"),
    Session("tests(mesh-core)"),
    Session("fs"),
    Session("tensor"),
    Session("examples"),
    Session("docs"),
    Session("rdma"),
    Session("security"),
    Session("readme"),
    Session("types"),
    Session("fuzz"),
    Session("layers"),
    Session("tests(across)"),
    Session("soak"),
    Session("site"),
    Session("lint"),
    SMALL,
    LARGE,
)

#: Sessions that wait for schedulers, timeouts and other hosts most of the time.
WAITING: tuple[Session, ...] = (
    Session("slurm"),
    Session("campaign", ("--failures", "50")),
    Session("diagnose", ("-m", "not slow")),
    Session("hosts"),
    Session("reproduce"),
    Session("chaos", ("--minutes", "0.5")),
)

#: Slow variants of tests, which run each night.
SLOW: tuple[Session, ...] = (
    *(
        Session(name, ("-m", "slow"))
        for name in (
            "telemetry",
            "jobs",
            "fs",
            "tensor",
            "examples",
            "docs",
            "rdma",
            "verbs",
            "slurm",
            "hosts",
            "security",
        )
    ),
    Session("tests(mesh-core)", ("packages/mesh-core/tests", "-m", "slow")),
    Session("diagnose", ("-m", "slow", "-k", "planted")),
    Session("campaign"),
    Session("drains"),
    Session("rust", ("--ignored",)),
    Session("agents"),
    Session("kube"),
    Session("images"),
    Session("oldest"),
    Session("release", ("--index", "local")),
)

#: Sessions that run alone after the others. Requests to the emulated adapters of `verbs` have taken
#: more than a minute concurrently with other sessions, and `bench` counts system calls.
ALONE: tuple[Session, ...] = (Session("verbs"), Session("bench", ("counts", "--check")))


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
    waiting: Sequence[Session] = WAITING,
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
    outcomes = _run_concurrently([setup], [len(setup)], live=True)
    if not any(outcome.failed for outcome in outcomes[:2]):
        lanes = [[_job(session) for session in lane] for lane in (shared, waiting)]
        outcomes += _run_concurrently(lanes, [SHARED_MAX, WAITING_MAX])
        outcomes += _run_concurrently([[_job(session) for session in alone]], [1], live=True)
    busy_s, idle_s = (now - before for now, before in zip(machine_times(), times, strict=True))
    _report(outcomes, time.monotonic() - started, busy_s / (busy_s + idle_s))
    is_well = not any(outcome.failed for outcome in outcomes)
    return 0 if is_well and len(unsteady(outcomes)) <= UNSTEADY_MAX else 1


def _run_concurrently(
    lanes: Sequence[Sequence[Job]], workers: Sequence[int], *, live: bool = False
) -> list[Outcome]:
    """Run jobs and return the outcomes in their order.

    Args:
        lanes: The jobs of each lane, which are started in order.
        workers: How many jobs of each lane run at a time. A worker whose lane is empty continues
            with the other lanes.
        live: Whether to show lines immediately.
    """
    waiting = [deque(lane) for lane in lanes]
    outcomes: dict[Job, Outcome] = {}

    def run_worker(lane: int) -> None:
        for jobs in (waiting[lane], *waiting):
            while True:
                try:
                    job = jobs.popleft()
                except IndexError:
                    break
                outcomes[job] = job.run(live=live)

    places = [lane for lane, count in enumerate(workers) for _ in range(count)]
    with ThreadPoolExecutor(len(places)) as threads:
        try:
            for done in [threads.submit(run_worker, lane) for lane in places]:
                done.result()
        except BaseException:
            # Ctrl-C reaches only this process: the jobs run in separate sessions.
            for lane in lanes:
                for job in lane:
                    job.stop()
            raise
    return [outcomes[job] for lane in lanes for job in lane]


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
