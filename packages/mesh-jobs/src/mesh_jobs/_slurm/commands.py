"""The commands of SLURM, limited to output that all its versions have in common."""

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

#: Messages of commands that could not reach the scheduler. Any other message of sbatch is a
#: rejection.
_UNREACHABLE = re.compile(
    r"unable to contact|socket timed out|connection (refused|timed out|reset)|not responding"
    r"|no route to host|zero bytes|transport endpoint|communication (connection )?failure"
    r"|backup controller|temporarily unable|in standby mode|message receive failure",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)

#: Terminal states. Any other state, also one of future versions, may still change.
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


class _SlurmObject:
    """An object with a state, in the scheduler's terms."""

    state: str

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs or can start anymore."""
        return self.state in _TERMINAL

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it runs at the moment, but may run later."""
        return self.state in _WAITING


@dataclass(frozen=True)
class SlurmComponent(_SlurmObject):
    """A job, or one component of a heterogeneous job.

    Attributes:
        name: The name of the job.
        offset: The index among the components of a heterogeneous job.
        state: The state, as the scheduler reports it.
        reason: Why the job is pending or has failed, as the scheduler reports it; empty without
            one.
        nodes: The current nodes, as a node list of the scheduler.
        restarts: How often the job was requeued.
        batch_host: The node that runs its script.
        exit_code: The exit status of its script, with 128 + N for signal N; None until it has
            ended.
        remaining_s: The time in seconds until the time limit; None without a limit.
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
class SlurmTask(_SlurmObject):
    """A task of an array."""

    state: str


@dataclass(frozen=True)
class SlurmNode:
    """A node, as the scheduler reports it."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True)
class Submission:
    """A script for `sbatch`, and the environment variables that must not be passed to it."""

    script: str
    overridden: Sequence[str]


class Slurm:
    """Client for the commands of the scheduler, without any state."""

    def submit(self, submission: Submission, held: int) -> str:
        """Submit a script and return the id of the job.

        Args:
            submission: The script to submit.
            held: A file descriptor that stays open until the scheduler has responded, even if this
                process is killed before.

        Raises:
            SchedulerUnreachable: The scheduler could not be reached, or its response is unknown.
            JobError: The scheduler rejects the job; the message contains its reason.
        """
        env = _environment()
        for name in submission.overridden:
            # The variable would take precedence over the line in the script.
            env.pop(name, None)
        done = _run(["sbatch", "--parsable"], env, submission.script, [held])
        if done.returncode != 0:
            said = _said(done)
            if _UNREACHABLE.search(said):
                raise SchedulerUnreachable(f"sbatch could not submit: {said}: try again later")
            raise JobError(f"the scheduler rejected the job: {said}")
        # In a multi-cluster setup, the id is followed by the name of the cluster.
        job_id = done.stdout.strip().rpartition("\n")[2].partition(";")[0]
        if not job_id.isdecimal():
            raise SchedulerUnreachable(
                f"sbatch printed no job id, but {done.stdout.strip()!r}: try again later"
            )
        return job_id

    def find(self, name: str) -> str | None:
        """Return the id of the job with a name, even if it has ended; None if it does not exist.

        For an array, this is the id of the whole array.

        Raises:
            SchedulerUnreachable: The scheduler cannot be reached.
        """
        words = ["squeue", "--noheader", "--states=all", f"--name={name}"]
        words.append("--Format=ArrayJobID:30,JobID:30")
        done = _run(words, _environment())
        if done.returncode != 0:
            raise _unreachable(words, done)
        # The first component of a heterogeneous job has the lowest id, which identifies the whole
        # job.
        found = (line.split() for line in done.stdout.splitlines())
        ids = sorted(int(pair[0] if pair[0] != "N/A" else pair[1]) for pair in found if pair)
        return str(ids[0]) if ids else None

    def job(self, job_id: str) -> list[SlurmComponent]:
        """Return the components of a job; empty if the scheduler does not know it.

        Raises:
            SchedulerUnreachable: The scheduler cannot be reached.
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
        """Return the state of a node.

        Raises:
            SchedulerUnreachable: The scheduler cannot be reached.
        """
        return self.nodes([name])[0]

    def tasks(self, job_id: str, name: str) -> list[SlurmTask]:
        """Return the tasks of an array; empty if the scheduler does not know it.

        Raises:
            SchedulerUnreachable: The scheduler cannot be reached.
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
        """Return the states of several nodes.

        Raises:
            SchedulerUnreachable: The scheduler cannot be reached.
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
        """Return the names in a node list such as `n[1-3,7]`.

        Raises:
            SchedulerUnreachable: The command of the scheduler cannot be run.
        """
        if not nodes:
            return []
        words = ["scontrol", "show", "hostnames", nodes]
        done = _run(words, _environment())
        if done.returncode != 0:
            raise _unreachable(words, done)
        return done.stdout.split()

    def own_jobs(self) -> list[tuple[str, str]]:
        """Return the id and the name of each job of this user that has not ended completely.

        Each task of an array is listed separately, as `ID_INDEX`.

        Raises:
            SchedulerUnreachable: The scheduler cannot be reached.
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
        """Remove all other nodes from a running job; processes on the removed nodes are killed.

        Args:
            job_id: The id of the job.
            nodes: The names of the nodes to keep.
            folder: The folder where the command may leave scripts that are not needed.

        Raises:
            SchedulerUnreachable: The scheduler cannot be reached.
            JobError: The scheduler rejects the request.
        """
        words = ["scontrol", "update", f"JobId={job_id}", f"NodeList={','.join(nodes)}"]
        done = _run(words, _environment(), cwd=folder)
        if done.returncode == 0:
            return
        if _UNREACHABLE.search(_said(done)):
            raise _unreachable(words, done)
        raise JobError(f"the scheduler removed no nodes from job {job_id}: {_said(done)}")

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs with all their components, even while pending; ended jobs are ignored.

        Raises:
            SchedulerUnreachable: The scheduler cannot be reached.
            JobError: The scheduler rejects the request, for example for a job of another user.
        """
        words = ["scancel", *job_ids]
        done = _run(words, _environment())
        said = _said(done)
        if done.returncode == 0 or _UNKNOWN_JOB.search(said) or "already compl" in said:
            return
        if _UNREACHABLE.search(said):
            raise _unreachable(words, done)
        raise JobError(f"the scheduler did not cancel job {' '.join(job_ids)}: {said}")


def _component(line: str) -> SlurmComponent:
    reason = _value(line, "Reason")
    nodes = _value(line, "NodeList")
    # Newer versions may append state flags to the state.
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
    """Parse a duration such as `1-02:03:04`; return None for other texts, such as `UNLIMITED`."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _exit_code(text: str) -> int | None:
    """Parse `status:signal`, and return an exit status with 128 + N for signal N."""
    status, _, number = text.partition(":")
    if not status.isdecimal() or not number.isdecimal():
        return None
    return 128 + int(number) if int(number) else int(status)


def _node(line: str) -> SlurmNode:
    why = re.search(r"\sReason=(.*?)(\s\[|\s\w+=|$)", line)
    name, state = _value(line, "NodeName"), _value(line, "State")
    return SlurmNode(name, state, why[1].strip() if why else "")


def _value(line: str, key: str) -> str:
    # User-defined text, such as a comment, appears after the values that are searched for here.
    found = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return found[1] if found else ""


def _environment() -> dict[str, str]:
    """Return the environment without variables of an enclosing job or of user preferences.

    Otherwise, the allocation of an enclosing job would become a request of the new job.
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
            f"{words[0]} is not installed on this machine: run the program on a machine with "
            "SLURM's commands"
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerUnreachable(
            f"{words[0]} did not respond in {_LIMIT_S:.0f} s: try again later"
        ) from None


def _unreachable(
    words: Sequence[str], done: subprocess.CompletedProcess[str]
) -> SchedulerUnreachable:
    return SchedulerUnreachable(f"{' '.join(words[:4])} failed: {_said(done)}: try again later")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines()]
    return "; ".join(line for line in lines if line) or f"status {done.returncode}"
