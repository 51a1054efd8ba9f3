"""A tree that root unpacks gives other users of the machine no privileges."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.users import User

#: Unpacks a tree into a directory as a program of root does, and keeps it until its input ends.
UNPACK = """
import sys
from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, remotemount

source, target, cache = sys.argv[1:]
options = MountOptions(backend="unpack")
cached = CacheOptions(folder=cache)
with remotemount(this_host(), source, target, cache=cached, mount=options) as files:
    files.wait(60)
    print("written", flush=True)
    sys.stdin.read()
"""
#: `cap_setuid+ep` in the kernel's format of file capabilities.
CAPABILITY = bytes.fromhex("0100000280000000000000000000000000000000")


@pytest.fixture
def superuser(public_place: Path) -> User:
    return User("superuser", 0, public_place)


@pytest.fixture
def unpacked(superuser: User, public_place: Path, tmp_path: Path) -> Iterator[Path]:
    """A tree of privileged files, unpacked by root in a place that every user can enter."""
    source, target = tmp_path / "source", public_place / "unpacked"
    source.mkdir()
    show_id = source / "setuid-id"
    shutil.copy(Path(shutil.which("id") or "/usr/bin/id").resolve(), show_id)
    show_id.chmod(0o6755)
    os.setxattr(show_id, "user.note", b"kept")
    shutil.copy(show_id, source / "capable")
    os.setxattr(source / "capable", "security.capability", CAPABILITY)
    os.setxattr(source / "capable", "trusted.note", b"root's")
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (source / "null").chmod(0o666)
    (source / "shared").mkdir()
    (source / "shared").chmod(0o3777)
    places = [str(place) for place in (source, target, tmp_path / "chunks")]
    with superuser.start_python(UNPACK, *places) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "written\n"
            yield target
        finally:
            program.stdin.close()
            assert program.wait(60) == 0


def test_another_user_cannot_become_root_with_an_unpacked_file(
    unpacked: Path, other_user: User
) -> None:
    assert other_user.run([str(unpacked / "setuid-id"), "-u"]) == f"{other_user.uid}\n"
    assert other_user.run([str(unpacked / "setuid-id"), "-g"]) == f"{other_user.uid}\n"


def test_unpacked_files_and_directories_have_no_setuid_and_setgid_bits(unpacked: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in unpacked.iterdir()}
    assert modes["setuid-id"] == 0o755
    assert modes["shared"] == 0o1777


def test_unpacked_files_have_no_capabilities(unpacked: Path) -> None:
    assert os.listxattr(unpacked / "capable") == []
    assert os.listxattr(unpacked / "setuid-id") == ["user.note"]


def test_devices_are_not_unpacked(unpacked: Path) -> None:
    assert not (unpacked / "null").exists()
    assert (unpacked / "shared").is_dir()


def test_root_does_not_write_to_a_path_prepared_by_another_user(
    superuser: User, other_user: User, tmp_path: Path
) -> None:
    source, victim = tmp_path / "source", tmp_path / "victim"
    source.mkdir()
    (source / "file").write_text("content")
    victim.mkdir()
    other_user.run(["mkdir", str(other_user.home / "theirs")])
    other_user.run(["ln", "-s", str(victim), str(other_user.home / "link")])
    expected = {
        "theirs": f"belongs to user {other_user.uid}",
        "link": f"is a symbolic link of user {other_user.uid}",
    }
    for name, why in expected.items():
        places = [str(source), str(other_user.home / name), str(tmp_path / "chunks")]
        assert why in superuser.run_python(UNPACK, *places)
    assert list(victim.iterdir()) == []
    assert list((other_user.home / "theirs").iterdir()) == []
