"""A job folder in a place that others can write: files that they plant there are not used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.users import User

#: Plants an ssh job in a folder: a query of its state would run a command of the record.
PLANT_RECORD = """
import sys
from pathlib import Path
from mesh_jobs import SSHJob, SSHOptions
from mesh_jobs._state.record import Record
from mesh_jobs._state.folder import StateFolder
place, marker = Path(sys.argv[1]), sys.argv[2]
command = f"-oProxyCommand=touch {marker}"
job = SSHJob({"m": ["somewhere"]}, options=SSHOptions(ssh_args=[command]), folder=place)
allocation = {"id": "x", "places": [["m", 0, "somewhere"]]}
state = StateFolder(place / ".mesh" / "default")
state.path.mkdir(parents=True)
state.write(Record(job._spec, "x", allocation))
(state.path / "job.json").chmod(0o644)
state.path.chmod(0o755)
"""

#: Queries the state of any job that is applied in a folder.
STATUS = """
import sys
from mesh_jobs import JobError, job_load
try:
    print(job_load(folder=sys.argv[1]).status().state)
except JobError as error:
    print("refused:", error)
"""

#: Applies a job in a folder, and ends it.
APPLY = """
import sys
from mesh_jobs import ProcessJob
try:
    job = ProcessJob({"m": 1}, folder=sys.argv[1])
    job.apply()
    job.kill()
    print("applied")
except OSError as error:
    print("refused:", error)
"""


@pytest.fixture
def shared(public_place: Path, request: pytest.FixtureRequest) -> Path:
    """A folder that every user can write."""
    place = public_place / f"shared-{request.node.name}"
    place.mkdir()
    place.chmod(0o777)
    return place


def test_the_commands_of_a_planted_record_are_not_run(
    owner: User, other_user: User, shared: Path
) -> None:
    marker = owner.home / "tmp" / "ran"
    assert other_user.run_python(PLANT_RECORD, str(shared), str(marker)) == ""
    said = owner.run_python(STATUS, str(shared))
    assert said.startswith("refused: "), said
    assert f"belongs to user {other_user.uid}" in said
    assert not marker.exists(), "a command of the planted record ran"


def test_a_planted_link_does_not_truncate_a_file_of_the_user(
    owner: User, other_user: User, shared: Path
) -> None:
    kept = owner.home / "tmp" / "kept"
    owner.run(["sh", "-c", f"echo precious > {kept}"])
    folder = shared / ".mesh" / "default"
    plant = f"mkdir -p {folder}; ln -s {kept} {folder}/lock; chmod 777 {folder}"
    other_user.run(["sh", "-c", plant])
    assert owner.run_python(APPLY, str(shared)).startswith("refused: ")
    assert kept.read_text() == "precious\n"


def test_a_planted_folder_gets_no_credentials(owner: User, other_user: User, shared: Path) -> None:
    folder = shared / ".mesh" / "default"
    other_user.run(["sh", "-c", f"mkdir -p {folder}; chmod 777 {folder}"])
    said = owner.run_python(APPLY, str(shared))
    assert said.startswith("refused: "), said
    assert f"belongs to user {other_user.uid}" in said
    assert not (folder / "keys").exists()
