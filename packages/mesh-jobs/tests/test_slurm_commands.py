"""Parsing of the output of SLURM's commands, with fakes of several versions and of failures."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from mesh_jobs import JobError, Phase, SchedulerUnreachable, SlurmJob
from mesh_jobs.spi import write_private

JOB = "JobId={id} JobName={name} UserId=me(1) JobState={state} Reason={reason} Requeue=1"
JOB += " Restarts=0 NodeList={nodes} BatchHost=n1 Comment=JobState=FAILED"


class Commands:
    """A folder of fake commands that comes first on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        self.fake("sbatch", 'cat > "$0.script"; echo 17')
        self.fake("squeue", "")
        self.fake("scancel", 'echo "$@" >> "$0.calls"')

    def fake(self, name: str, script: str) -> None:
        path = self.folder / name
        write_private(path, f"#!/bin/sh\n{script}\n".encode())
        path.chmod(0o700)

    def shows(self, job: SlurmJob, **fields: Any) -> None:
        """Make the fake scontrol show the job with the given fields."""
        name = next(
            line.partition("=")[2]
            for line in (self.folder / "sbatch.script").read_text().splitlines()
            if line.startswith("#SBATCH --job-name=")
        )
        values = {"id": 17, "name": name, "reason": "None", "nodes": "(null)", **fields}
        self.fake("scontrol", f"echo '{JOB.format(**values)}'")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(tmp_path / "bin", monkeypatch)


@pytest.fixture
def job(commands: Commands, tmp_path: Path) -> SlurmJob:
    return SlurmJob({"a": 1}, folder=tmp_path)


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", Phase.PENDING),
        ("CONFIGURING", Phase.PENDING),
        ("COMPLETING", Phase.PENDING),
        ("REQUEUE_HOLD", Phase.PENDING),
        ("RUNNING", Phase.RUNNING),
        ("SUSPENDED", Phase.RUNNING),
        ("SOMETHING_NEW", Phase.RUNNING),
        ("RUNNING,RESIZING", Phase.RUNNING),
        ("COMPLETED", Phase.ENDED),
        ("CANCELLED", Phase.ENDED),
        ("NODE_FAIL", Phase.ENDED),
        ("OUT_OF_MEMORY", Phase.ENDED),
        ("BOOT_FAIL", Phase.ENDED),
        ("DEADLINE", Phase.ENDED),
        ("REVOKED", Phase.ENDED),
        ("PREEMPTED", Phase.ENDED),
        ("TIMEOUT", Phase.ENDED),
    ],
)
def test_the_scheduler_state_maps_to_a_phase(
    commands: Commands, job: SlurmJob, state: str, phase: Phase
) -> None:
    job.apply()
    commands.shows(job, state=state)
    assert job.status().state is phase


def test_the_reason_of_the_scheduler_is_reported(commands: Commands, job: SlurmJob) -> None:
    job.apply()
    commands.shows(job, state="PENDING", reason="QOSMaxGRESPerUser")
    assert job.status().reason == "PENDING (QOSMaxGRESPerUser)"


@pytest.mark.parametrize(
    "complaint",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "scontrol: error: something that no version has said so far",
    ],
)
def test_a_failed_scheduler_command_does_not_end_the_job(
    commands: Commands, job: SlurmJob, complaint: str
) -> None:
    job.apply()
    for name in ("scontrol", "squeue"):
        commands.fake(name, f"echo '{complaint}' >&2; exit 1")
    with pytest.raises(SchedulerUnreachable, match="try again later"):
        job.status()
    with pytest.raises(SchedulerUnreachable):
        job.kill()
    assert not (commands.folder / "scancel.calls").exists()


def test_a_job_unknown_to_the_scheduler_has_ended(commands: Commands, job: SlurmJob) -> None:
    job.apply()
    commands.fake("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert job.status().state is Phase.ENDED
    assert "no longer knows job 17" in job.status().reason


def test_another_job_with_the_same_id_is_not_cancelled(commands: Commands, job: SlurmJob) -> None:
    job.apply()
    commands.shows(job, state="RUNNING", name="theirs")
    assert job.status().state is Phase.ENDED
    job.kill()
    assert not (commands.folder / "scancel.calls").exists()


def test_a_rejected_submission_raises_an_error_and_stores_nothing(
    commands: Commands, job: SlurmJob
) -> None:
    commands.fake("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(JobError, match="invalid partition specified: x") as refused:
        job.apply()
    assert not isinstance(refused.value, SchedulerUnreachable)
    with pytest.raises(JobError, match="not applied"):
        job.status()


def test_an_unconfirmed_submission_is_looked_up_before_a_retry(
    commands: Commands, job: SlurmJob
) -> None:
    commands.fake(
        "sbatch",
        'cat > "$0.script"; echo "sbatch: error: Socket timed out on send/recv" >&2; exit 1',
    )
    with pytest.raises(SchedulerUnreachable):
        job.apply()
    commands.fake("sbatch", 'echo again >> "$0.calls"; echo 18')
    commands.fake("squeue", "echo 17")
    commands.shows(job, state="RUNNING", nodes="n1")
    job.apply()
    assert job.status().state is Phase.RUNNING
    assert not (commands.folder / "sbatch.calls").exists()


def test_the_cluster_name_is_not_part_of_the_job_id(commands: Commands, job: SlurmJob) -> None:
    commands.fake("sbatch", 'cat > "$0.script"; echo "17;west"')
    job.apply()
    commands.fake("scontrol", 'echo "$@" > "$0.call"; exit 1')
    with pytest.raises(SchedulerUnreachable):
        job.status()
    assert (commands.folder / "scontrol.call").read_text().split()[-1] == "17"


def test_variables_of_an_enclosing_job_are_not_passed_on(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/ours.conf")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "habit")
    commands.fake("sbatch", 'cat > "$0.script"; env > "$0.env"; echo 17')
    SlurmJob({"a": 1}, time_limit=30, folder=tmp_path).apply()
    seen = dict(
        line.split("=", 1) for line in (commands.folder / "sbatch.env").read_text().splitlines()
    )
    assert "SLURM_NTASKS" not in seen
    assert "SBATCH_TIMELIMIT" not in seen, "it would be stronger than the script"
    assert seen["SLURM_CONF"] == "/etc/ours.conf"
    assert seen["SBATCH_ACCOUNT"] == "habit"


def test_a_missing_slurm_installation_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(SchedulerUnreachable, match="squeue is not installed on this machine"):
        SlurmJob({"a": 1}, folder=tmp_path).apply()


@pytest.mark.parametrize(
    ("shown", "left"),
    [
        ("TimeLimit=00:10:00 RunTime=00:04:00", 360),
        ("TimeLimit=1-02:00:00 RunTime=1-00:00:00", 7200),
        ("TimeLimit=01:00 RunTime=00:02:00", 0),
        ("TimeLimit=UNLIMITED RunTime=00:04:00", None),
    ],
)
def test_the_remaining_time_is_reported(
    commands: Commands, job: SlurmJob, shown: str, left: float | None
) -> None:
    job.apply()
    commands.shows(job, state=f"RUNNING {shown}")
    assert job.remaining() == left


@pytest.mark.parametrize(
    ("note", "reason", "seconds"),
    [
        ("leaving now={now} JobState=RUNNING EndTime={later} PreemptTime=", "timeout", 40),
        ("leaving now={now} JobState=RUNNING EndTime={later} PreemptTime={now}", "preempt", 40),
        ("leaving", "timeout", None),
        ("stopping JobState=COMPLETING Restarts=1", "preempt", None),
        ("stopping JobState=TIMEOUT TimeLimit=00:01:00 RunTime=00:01:02", "timeout", None),
        ("stopping JobState=CANCELLED TimeLimit=00:01:00 RunTime=00:00:02", "end", None),
        ("stopping", "end", None),
    ],
)
def test_the_reason_why_hosts_leave_is_reported(
    commands: Commands, job: SlurmJob, note: str, reason: str, seconds: float | None
) -> None:
    job.apply()
    commands.shows(job, state="RUNNING")
    line = note.format(now="2026-11-21T20:00:00", later="2026-11-21T20:00:40")
    Path(job.folder, "workers", "slurm-events").write_text(f"{time.time():.0f} 0 {line}\n")
    (told,) = job.leaving()
    assert (told.mesh, told.rank, told.reason) == ("a", 0, reason)
    if seconds is None:
        assert told.seconds is None
    else:
        assert told.seconds is not None
        assert seconds - 10 < told.seconds <= seconds + 1


def test_leaving_notices_expire_when_the_job_restarts(commands: Commands, job: SlurmJob) -> None:
    job.apply()
    commands.shows(job, state="RUNNING")
    events = Path(job.folder, "workers", "slurm-events")
    events.write_text("1 0 started on n1\n2 0 stopping Restarts=1\n3 1 started on n2\n")
    assert job.leaving() == []
    assert [event.text for event in job.events()][:3] == [
        "on n1",
        "the nodes are preempted for another job",
        "on n2, restart 1",
    ]


def test_an_unrecorded_script_status_is_read_from_the_scheduler(
    commands: Commands, tmp_path: Path
) -> None:
    job = SlurmJob({"a": 1}, folder=tmp_path).apply("train.py")
    Path(job.folder, "workers", "client.json").write_text('{"epoch": 0, "status": null}')
    commands.shows(job, state="CANCELLED ExitCode=0:15")
    assert job.status().exit_code == 143
    commands.shows(job, state="RUNNING ExitCode=0:0")
    assert job.status().exit_code is None
