"""Which nox sessions `python3 -m tools test` runs, in what order, and what it says at the end."""

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


@dataclass(frozen=True)
class Session:
    """A nox session and the arguments after its `--`."""

    name: str
    args: tuple[str, ...] = ()


#: Lanes run side by side, the sessions of a lane one after the other.
Stage = tuple[tuple[Session, ...], ...]

#: Programs on few hosts, where anything may happen.
SMALL = Session("sim", ("--seeds", "50"))
#: Casts over many hosts, some of which die: small enough for every change.
LARGE = Session("sim", ("--actors", "4000", "--deaths", "100", "--seeds", "3"))

#: Sessions that notice what else runs, by time or by count, have the machine to themselves.
STAGES: tuple[Stage, ...] = (
    ((Session("lint"), Session("types")), (Session("rust"),)),
    ((Session("tests"), Session("bench", ("counts", "--check")), Session("soak")),),
    ((Session("security"), Session("hosts"), Session("chaos", ("--minutes", "0.5"))),),
    (
        (Session("jobs"), Session("examples"), Session("fs"), Session("docs"), Session("readme")),
        (
            *(Session("tensor"), Session("rdma"), Session("telemetry"), Session("layers")),
            *(SMALL, LARGE, Session("fuzz"), Session("kube")),
        ),
    ),
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


def run(stages: Sequence[Stage]) -> int:
    """Runs all stages, also after a failure, and returns the exit status."""
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for stage in stages:
        outcomes += _run_stage([[_job(session) for session in lane] for lane in stage])
    _report(outcomes, time.monotonic() - started)
    is_well = not any(outcome.failed for outcome in outcomes)
    return 0 if is_well and len(unsteady(outcomes)) <= UNSTEADY_MAX else 1


def _run_stage(lanes: Sequence[Sequence[Job]]) -> list[Outcome]:
    live = len(lanes) == 1

    def run_lane(lane: Sequence[Job]) -> list[Outcome]:
        return [job.run(live=live) for job in lane]

    with ThreadPoolExecutor(len(lanes)) as threads:
        try:
            return [outcome for outcomes in threads.map(run_lane, lanes) for outcome in outcomes]
        except BaseException:
            # Ctrl-C reaches only this process: the jobs are in sessions of their own.
            for job in (job for lane in lanes for job in lane):
                job.stop()
            raise


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
