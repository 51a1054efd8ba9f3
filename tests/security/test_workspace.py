"""A workspace writes nothing outside its directory, whatever another user prepares there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.users import User

#: Syncs a directory into another one, and prints the error, if any.
SYNC = """
import sys
from mesh_core import MeshError, this_host
from mesh_fs import CacheOptions, sync_workspace

source, target, cache = sys.argv[1:]
try:
    with sync_workspace(this_host(), source, target, cache=CacheOptions(folder=cache)) as synced:
        print("written", synced.result.written)
except MeshError as error:
    print("refused", error)
"""


@pytest.fixture
def source(owner: User) -> Path:
    """The source of the sync: a file in a folder, and a module."""
    root = owner.home / "source"
    owner.run(["mkdir", "-p", str(root / "folder")])
    owner.run(["sh", "-c", f"echo content > {root}/folder/file; echo x = 1 > {root}/module.py"])
    return root


@pytest.fixture
def shared(public_place: Path) -> Iterator[Path]:
    """A folder in which every user may create, rename and remove files."""
    folder = public_place / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def secret(owner: User) -> Iterator[Path]:
    """A file of the owner that the attacks target, alone in its folder."""
    path = owner.home / "victim/file"
    owner.run(["mkdir", "-p", str(path.parent)])
    owner.run(["sh", "-c", f"echo secret > {path}"])
    yield path
    shutil.rmtree(path.parent)


def sync(owner: User, source: Path, target: Path, chunks: Path | None = None) -> str:
    return owner.run_python(SYNC, str(source), str(target), str(chunks or owner.home / "chunks"))


def test_a_directory_of_another_user_is_refused(
    owner: User, other_user: User, source: Path, shared: Path, secret: Path
) -> None:
    target = shared / "target"
    other_user.run(["mkdir", "-m", "777", "-p", str(target / ".mesh-workspace")])
    other_user.run(["ln", "-s", str(secret), str(target / ".mesh-workspace/lock")])
    said = sync(owner, source, target)
    assert said.startswith("refused")
    assert f"belongs to user {other_user.uid}" in said
    assert secret.read_text() == "secret\n"


def test_a_symbolic_link_of_another_user_is_not_followed_to_the_directory(
    owner: User, other_user: User, source: Path, shared: Path, secret: Path
) -> None:
    other_user.run(["ln", "-s", str(secret.parent), str(shared / "target")])
    other_user.run(["ln", "-s", str(secret.parent), str(shared / "above")])
    for target in (shared / "target", shared / "above/target"):
        said = sync(owner, source, target)
        assert said.startswith("refused")
        assert f"is a symbolic link of user {other_user.uid}" in said
    assert [path.name for path in secret.parent.iterdir()] == ["file"]


def test_a_planted_lock_is_not_truncated(
    owner: User, other_user: User, source: Path, shared: Path, secret: Path
) -> None:
    target = _open_target(owner, shared)
    for name in ("lock", "names", "names.unfinished"):
        other_user.run(["ln", "-s", str(secret), str(target / ".mesh-workspace" / name)])
    said = sync(owner, source, target)
    assert secret.read_text() == "secret\n"
    assert said.startswith("refused")


def test_planted_links_in_the_tree_are_not_followed(
    owner: User, other_user: User, source: Path, shared: Path, secret: Path
) -> None:
    target = _open_target(owner, shared)
    other_user.run(["ln", "-s", str(secret.parent), str(target / "folder")])
    other_user.run(["ln", "-s", str(secret.parent), str(target / "__pycache__")])
    other_user.run(["ln", "-s", str(secret), str(target / ".mesh-unfinished")])
    owner.run(["touch", str(secret.parent / "module.cpython-311.pyc")])
    assert sync(owner, source, target) == "written 2\n"
    assert secret.read_text() == "secret\n"
    assert (secret.parent / "module.cpython-311.pyc").exists()
    assert not (target / "folder").is_symlink()
    assert (target / "folder/file").read_text() == "content\n"


def test_other_users_cannot_hold_the_lock(
    owner: User, other_user: User, source: Path, shared: Path
) -> None:
    target = _open_target(owner, shared)
    assert sync(owner, source, target) == "written 2\n"
    said = other_user.run(["flock", "-n", str(target / ".mesh-workspace/lock"), "true"])
    assert "Permission denied" in said


def test_chunks_are_not_kept_behind_a_symbolic_link_of_another_user(
    owner: User, other_user: User, source: Path, shared: Path, secret: Path
) -> None:
    other_user.run(["ln", "-s", str(secret.parent), str(shared / "chunks")])
    said = sync(owner, source, shared / "target", shared / "chunks")
    assert f"is a symbolic link of user {other_user.uid}" in said
    assert [path.name for path in secret.parent.iterdir()] == ["file"]


def _open_target(owner: User, shared: Path) -> Path:
    """Create a target of the owner that other users may write."""
    target = shared / "target"
    owner.run(["mkdir", "-p", str(target / ".mesh-workspace")])
    owner.run(["chmod", "777", str(target), str(target / ".mesh-workspace")])
    return target
