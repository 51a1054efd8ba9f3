"""A notebook shows a job and its status as tables."""

from __future__ import annotations

from pathlib import Path

from mesh_jobs import LocalJob


def test_a_job_shows_its_meshes_without_querying_a_scheduler(tmp_path: Path) -> None:
    job = LocalJob({"trainers": 1}, name="digits", folder=tmp_path)
    shown = job._repr_html_()
    assert "LocalJob &#x27;digits&#x27;" in shown
    assert "<td>trainers</td><td>1</td>" in shown


def test_a_status_shows_the_state_of_each_host(tmp_path: Path) -> None:
    job = LocalJob({"trainers": 1}, name="digits", folder=tmp_path).apply()
    shown = job.status()._repr_html_()
    assert "digits: running, 1 of 1 hosts up" in shown
    assert "<td>trainers</td><td>0</td><td>running</td>" in shown
    job.kill()
