"""Telemetry starts although another user occupies its folder names in shared memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.users import User

PARENTS = ("/dev/shm", "/tmp")

# Creates the attacker's files; argv contains the user to attack and the kind of file.
SQUAT = """
import os, sys, tempfile

uid, how = sys.argv[1:3]
elsewhere = os.path.join(tempfile.gettempdir(), "elsewhere")
os.makedirs(elsewhere, mode=0o777, exist_ok=True)
os.chmod(elsewhere, 0o777)
os.chmod(tempfile.gettempdir(), 0o755)
os.chmod(os.path.expanduser("~"), 0o755)
made = []
for parent in sys.argv[3:]:
    for name in (f"mesh-telemetry-{uid}", f"mesh-telemetry-{uid}-1-00", f"mesh-served-{uid}"):
        path = os.path.join(parent, name)
        if how == "link":
            os.symlink(elsewhere, path)
        else:
            os.mkdir(path)
            os.chmod(path, 0o777)
            os.mkdir(os.path.join(path, "0"), mode=0o777)
        made.append(path)
print("ready", flush=True)
sys.stdin.readline()
for folder in (elsewhere, *made):
    if not os.path.islink(folder):
        for above, folders, files in os.walk(folder):
            for name in folders + files:
                found = os.lstat(os.path.join(above, name))
                if found.st_uid != os.getuid():
                    print("written:", os.path.join(above, name), flush=True)
"""

PROGRAM = """
from mesh_core import this_host
from mesh_telemetry import Telemetry
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.program_files import served_program

with Telemetry() as telemetry, telemetry.serve():
    procs = this_host().spawn_procs({"gpus": 2}, name="team")
    procs.initialized.get()
    with ProgramClient(served_program()) as client:
        rows = client.query("select proc from procs where mesh = 'team' order by rank")["rows"]
    print(len(rows), "recorded")
"""


@pytest.fixture(autouse=True)
def free_names(owner: User) -> Iterator[None]:
    """Remove everything with the names of the owner's folders, before and after a test."""
    remove_folders_of(owner)
    yield
    remove_folders_of(owner)


def remove_folders_of(user: User) -> None:
    """Remove telemetry folders of any creator, as root."""
    for parent in PARENTS:
        for path in Path(parent).glob(f"mesh-*-{user.uid}*"):
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path)


@pytest.mark.parametrize("how", ["folder", "link"])
def test_telemetry_starts_although_another_user_occupies_its_folder_names(
    owner: User, other_user: User, how: str
) -> None:
    with other_user.start_python(SQUAT, str(owner.uid), how, *PARENTS) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        try:
            # Without a session folder, the files are in the temporary folder.
            environment = {"XDG_RUNTIME_DIR": "", "TMPDIR": "/tmp"}
            said = owner.run_python(PROGRAM, env=environment)
        finally:
            found, _ = squatter.communicate("\n", timeout=60)
    assert said.endswith("2 recorded\n"), said
    assert found == "", "something of the owner is in a folder of the attacker"
