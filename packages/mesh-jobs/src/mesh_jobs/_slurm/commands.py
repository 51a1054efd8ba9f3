"""The commands of SLURM, as far as all its versions agree on what they print."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh_jobs._errors import JobError, SchedulerUnreachable

__all__ = ["Slurm", "SlurmComponent", "SlurmNode", "SlurmTask", "Submission", "duration_s"]

_LIMIT_S = 60.0

#: What the commands say when they could not ask; anything else that sbatch says is a refusal.
_UNREACHABLE = re.compile(
    r"unable to contact|socket timed out|connection (refused|timed out|reset)|not responding"
    r"|no route to host|zero bytes|transport endpoint|communication (connection )?failure"
    r"|backup controller|temporarily unable|in standby mode|message receive failure",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)

#: States that nothing follows; whatever else there is, or will be, may still become something.
_TERMINAL = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)
_WAITING = frozenset(
    [
        "PENDING",
        "CONFIGURING",
        "COMPLETING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "STAGE_OUT",
    ]
)


class _Stated:
    """What has a state, in the scheduler's word."""

    state: str

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs or will run."""
        return self.state in _TERMINAL

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it runs now, though something may."""
        return self.state in _WAITING


@dataclass(frozen=True)
class SlurmComponent(_Stated):
    """One job; those that ask for unlike nodes have several of them.

    Attributes:
        name: The job's name.
        offset: Its place among the parts of a heterogeneous job.
        state: In the scheduler's words.
        reason: Why it waits or failed, in the scheduler's words; empty when there is none.
        nodes: The nodes that it has now, as a list of the scheduler's.
        restarts: How often it was put into the queue again.
        batch_host: The node that its script runs on.
        exit_code: With what its script has ended, as a shell says it; None before.
        remaining_s: How long it may still run; None where there is no limit.
    """

    name: str
    offset: int
    state: str
    reason: str
    nodes: str
    restarts: int
    batch_host: str
    exit_code: int | None
    remaining_s: float | None


@dataclass(frozen=True)
class SlurmTask(_Stated):
    """One task of an array."""

    state: str


@dataclass(frozen=True)
class SlurmNode:
    """A node, as the scheduler sees it."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True)
class Submission:
    """A script for `sbatch`, and what of our environment must not be part of it."""

    script: str
    overridden: Sequence[str]


class Slurm:
    """Asks the scheduler; keeps nothing."""

    def submit(self, submission: Submission, held: int) -> str:
        """Submits a script and returns the id of the job.

        Args:
            submission: What to submit.
            held: A file descriptor that stays open until the scheduler has answered, even if this
                process is killed before.

        Raises:
            SchedulerUnreachable: It could not be asked, or nobody knows what it answered.
            JobError: It refuses; the message has its words.
        """
        env = _environment()
        for name in submission.overridden:
            # A variable would be stronger than the line in the script.
            env.pop(name, None)
        done = _run(["sbatch", "--parsable"], env, submission.script, [held])
        if done.returncode != 0:
            said = _said(done)
            if _UNREACHABLE.search(said):
                raise SchedulerUnreachable(f"sbatch could not submit: {said}: try again later")
            raise JobError(f"the scheduler refuses the job: {said}")
        # With several clusters the name of this one follows.
        job_id = done.stdout.strip().rpartition("\n")[2].partition(";")[0]
        if not job_id.isdecimal():
            raise SchedulerUnreachable(
                f"sbatch told no id of a job, but {done.stdout.strip()!r}: try again later"
            )
        return job_id

    def find(self, name: str) -> str | None:
        """Returns the id of the job of that name, also when it is over; None when there is none.

        For an array it is that of the whole.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        words = ["squeue", "--noheader", "--states=all", f"--name={name}"]
        words.append("--Format=ArrayJobID:30,JobID:30")
        done = _run(words, _environment())
        if done.returncode != 0:
            raise _unreachable(words, done)
        # The first part of a heterogeneous job has the lowest id, and stands for all.
        found = (line.split() for line in done.stdout.splitlines())
        ids = sorted(int(pair[0] if pair[0] != "N/A" else pair[1]) for pair in found if pair)
        return str(ids[0]) if ids else None

    def job(self, job_id: str) -> list[SlurmComponent]:
        """Returns the parts of a job, none when the scheduler does not know it.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        words = ["scontrol", "--oneliner", "show", "job", job_id]
        done = _run(words, _environment())
        if done.returncode != 0:
            if _UNKNOWN_JOB.search(done.stderr):
                return []
            raise _unreachable(words, done)
        lines = [line for line in done.stdout.splitlines() if line.startswith("JobId=")]
        return sorted((_component(line) for line in lines), key=lambda one: one.offset)

    def node(self, name: str) -> SlurmNode:
        """Returns how a node is.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        return self.nodes([name])[0]

    def tasks(self, job_id: str, name: str) -> list[SlurmTask]:
        """Returns the tasks of an array, none when the scheduler does not know it.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        words = ["squeue", "--noheader", "--states=all", "--array", f"--jobs={job_id}"]
        done = _run([*words, "--Format=Name:300,State:30"], _environment())
        if done.returncode != 0:
            if _UNKNOWN_JOB.search(done.stderr):
                return []
            raise _unreachable(words, done)
        pairs = [line.split() for line in done.stdout.splitlines()]
        return [SlurmTask(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == name]

    def nodes(self, names: Sequence[str]) -> list[SlurmNode]:
        """Returns how some nodes are.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        if not names:
            return []
        words = ["scontrol", "--oneliner", "show", "node", ",".join(names)]
        done = _run(words, _environment())
        if done.returncode != 0:
            raise _unreachable(words, done)
        lines = [line for line in done.stdout.splitlines() if line.startswith("NodeName=")]
        return [_node(line) for line in lines]

    def names(self, nodes: str) -> list[str]:
        """Returns the names in a list such as `n[1-3,7]`.

        Raises:
            SchedulerUnreachable: The scheduler's command cannot be run.
        """
        if not nodes:
            return []
        words = ["scontrol", "show", "hostnames", nodes]
        done = _run(words, _environment())
        if done.returncode != 0:
            raise _unreachable(words, done)
        return done.stdout.split()

    def own_jobs(self) -> list[tuple[str, str]]:
        """Returns id and name of each job of this user that runs, waits, or is about to end.

        Each task of an array is one, as `ID_INDEX`.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        words = ["squeue", "--noheader", "--array", f"--user={os.getuid()}"]
        done = _run(
            [*words, "--Format=JobID:30,Name:300,ArrayJobID:30,ArrayTaskID:30"], _environment()
        )
        if done.returncode != 0:
            raise _unreachable(words, done)
        found = []
        for line in done.stdout.splitlines():
            job_id, name, *array = line.split()
            is_task = len(array) == 2 and array[1].isdecimal()
            found.append(("_".join(array) if is_task else job_id, name))
        return found

    def keep_nodes(self, job_id: str, nodes: Sequence[str], folder: Path) -> None:
        """Takes all other nodes from a job that runs; what runs there is killed.

        Args:
            job_id: The job.
            nodes: The names of those that it keeps.
            folder: Where the command may leave scripts that nobody needs.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
            JobError: It refuses.
        """
        words = ["scontrol", "update", f"JobId={job_id}", f"NodeList={','.join(nodes)}"]
        done = _run(words, _environment(), cwd=folder)
        if done.returncode == 0:
            return
        if _UNREACHABLE.search(_said(done)):
            raise _unreachable(words, done)
        raise JobError(f"the scheduler takes no nodes from job {job_id}: {_said(done)}")

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Ends jobs, all their parts, also while they wait; nothing when they are over.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
            JobError: It refuses, as with a job of somebody else.
        """
        words = ["scancel", *job_ids]
        done = _run(words, _environment())
        said = _said(done)
        if done.returncode == 0 or _UNKNOWN_JOB.search(said) or "already compl" in said:
            return
        if _UNREACHABLE.search(said):
            raise _unreachable(words, done)
        raise JobError(f"the scheduler does not end job {' '.join(job_ids)}: {said}")


def _component(line: str) -> SlurmComponent:
    reason = _value(line, "Reason")
    nodes = _value(line, "NodeList")
    # Newer versions may add what goes on beside the state itself.
    state = _value(line, "JobState").partition(",")[0]
    limit, run = duration_s(_value(line, "TimeLimit")), duration_s(_value(line, "RunTime"))
    return SlurmComponent(
        name=_value(line, "JobName"),
        offset=int(_value(line, "HetJobOffset") or _value(line, "PackJobOffset") or 0),
        state=state,
        reason="" if reason == "None" else reason,
        nodes="" if nodes == "(null)" else nodes,
        restarts=int(_value(line, "Restarts") or 0),
        batch_host=_value(line, "BatchHost"),
        exit_code=_exit_code(_value(line, "ExitCode")) if state in _TERMINAL else None,
        remaining_s=None if limit is None else max(limit - (run or 0.0), 0.0),
    )


def duration_s(text: str) -> float | None:
    """Reads a time such as `1-02:03:04`; None where it is none, as `UNLIMITED`."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _exit_code(text: str) -> int | None:
    """Reads `status:signal`, and gives it as a shell does."""
    status, _, number = text.partition(":")
    if not status.isdecimal() or not number.isdecimal():
        return None
    return 128 + int(number) if int(number) else int(status)


def _node(line: str) -> SlurmNode:
    why = re.search(r"\sReason=(.*?)(\s\[|\s\w+=|$)", line)
    name, state = _value(line, "NodeName"), _value(line, "State")
    return SlurmNode(name, state, why[1].strip() if why else "")


def _value(line: str, key: str) -> str:
    # What users may have written, such as a comment, comes behind what is looked for here.
    found = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return found[1] if found else ""


def _environment() -> dict[str, str]:
    """Returns our variables without those of a job that we may run in, or of a user's habits.

    What a job around us has been given would become what the new one asks for.
    """
    kept = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
    dropped = ("SLURM_", "SQUEUE_", "SCONTROL_", "SCANCEL_")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(dropped)
    }


def _run(
    words: Sequence[str],
    env: Mapping[str, str],
    given: str = "",
    held: Sequence[int] = (),
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words,
            input=given,
            env={**env, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            pass_fds=held,
            cwd=cwd,
        )
    except FileNotFoundError:
        raise SchedulerUnreachable(
            f"{words[0]} is not on this machine: run the program where SLURM's commands are"
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerUnreachable(
            f"{words[0]} has not answered for {_LIMIT_S:.0f} s: try again later"
        ) from None


def _unreachable(
    words: Sequence[str], done: subprocess.CompletedProcess[str]
) -> SchedulerUnreachable:
    return SchedulerUnreachable(f"{' '.join(words[:4])} failed: {_said(done)}: try again later")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines()]
    return "; ".join(line for line in lines if line) or f"status {done.returncode}"
