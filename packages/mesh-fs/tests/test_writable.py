"""Files that host programs write over a tree: visible there, kept on refresh, then discarded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import mount_table, needs
from edited_trees import seen
from mount_processes import HOST, the_process

from mesh_core import this_host
from mesh_core.testing import wait_until
from mesh_fs import (
    CacheOptions,
    MountError,
    MountForbidden,
    MountHandler,
    MountOptions,
    SnapshotOptions,
    remotemount,
)

LIMIT_S = 60.0
LARGE = "package/inner/large.bin"


@pytest.fixture
def writable() -> MountOptions:
    """Options of a mount that supports writes on the host."""
    needs("fuse", writable=True)
    return MountOptions(backend="fuse", writable=True)


def left(cache: CacheOptions) -> list[Path]:
    """Return the files that mounts have left in the host's chunk store."""
    return list((cache.place() / "mounts").iterdir())


def opened(
    source: Path, mountpoint: Path, cache: CacheOptions, options: MountOptions
) -> MountHandler:
    """Return a handler that is not open yet."""
    return remotemount(this_host(), source, mountpoint, cache=cache, mount=options)


def run(*words: str | Path) -> str:
    """Run a program as users of the host do."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_a_writable_mount_equals_the_tree_before_any_write(
    source: Path, mountpoint: Path, cache: CacheOptions, writable: MountOptions
) -> None:
    with opened(source, mountpoint, cache, writable) as handler:
        handler.wait(LIMIT_S)
        assert seen(os.fsencode(mountpoint)) == seen(os.fsencode(source))
        (source / "package/module.py").write_text("ANSWER = 43\n")
        (source / "added").write_text("added")
        assert handler.refresh() is True
        assert seen(os.fsencode(mountpoint)) == seen(os.fsencode(source))


def test_writes_are_visible_only_in_their_mount_and_discarded_on_close(
    source: Path, mountpoint: Path, cache: CacheOptions, writable: MountOptions
) -> None:
    before = seen(os.fsencode(source))
    other = mountpoint.with_name("other")
    with opened(source, mountpoint, cache, writable), opened(source, other, cache, writable):
        run("sh", "-c", f"echo own > {mountpoint}/own; echo more >> {mountpoint}/script.sh")
        run("rm", "-r", mountpoint / "package/inner", mountpoint / "link")
        run("mv", mountpoint / "package", mountpoint / "moved")
        os.setxattr(mountpoint / "same.sh", "user.note", b"own")
        (mountpoint / "same.sh").chmod(0o700)
        assert run("cat", mountpoint / "own") == "own\n"
        assert run("cat", mountpoint / "script.sh").endswith("mount\nmore\n")
        assert sorted(os.listdir(mountpoint / "moved")) == ["module.py"]
        assert {"link", "package"}.isdisjoint(os.listdir(mountpoint))
        assert seen(os.fsencode(other)) == before
    assert seen(os.fsencode(source)) == before
    assert os.listdir(mountpoint) == []
    assert left(cache) == []
    with opened(source, mountpoint, cache, writable):
        assert seen(os.fsencode(mountpoint)) == before


def test_python_writes_its_bytecode_and_reuses_it(
    source: Path, mountpoint: Path, cache: CacheOptions, writable: MountOptions
) -> None:
    without = SnapshotOptions(ignore=("__pycache__",))
    handler = remotemount(
        this_host(), source, mountpoint, cache=cache, mount=writable, snapshot=without
    )
    code = f"import sys; sys.path.insert(0, {str(mountpoint / 'package')!r}); import module"

    def imported() -> str:
        words, usual = [sys.executable, "-v", "-c", code], {"PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(
            words, env=os.environ | usual, capture_output=True, text=True, check=True
        )
        return done.stderr

    with handler:
        assert f"created '{mountpoint}/package/__pycache__" in imported()
        again = imported()
        assert f"matches {mountpoint}/package/module.py" in again
        assert handler.refresh() is False
    assert not (source / "package/__pycache__").exists()


def test_a_refresh_keeps_the_writes_of_the_host(
    source: Path, mountpoint: Path, cache: CacheOptions, writable: MountOptions
) -> None:
    with opened(source, mountpoint, cache, writable) as handler:
        handler.wait(LIMIT_S)
        (mountpoint / "own").write_text("own")
        (mountpoint / "script.sh").write_text("the host's")
        (mountpoint / "empty").rmdir()
        (mountpoint / "package/module.py").unlink()
        (source / "script.sh").write_text("the client's")
        (source / "package/module.py").write_text("ANSWER = 43\n")
        (source / "package/added.py").write_text("ADDED = 1\n")
        (source / LARGE).write_bytes(b"other")
        assert handler.refresh() is True
        # If both have changed the file, the version of the host is visible.
        assert (mountpoint / "own").read_text() == "own"
        assert (mountpoint / "script.sh").read_text() == "the host's"
        assert not (mountpoint / "empty").exists()
        assert not (mountpoint / "package/module.py").exists()
        assert (mountpoint / "package/added.py").read_text() == "ADDED = 1\n"
        assert (mountpoint / LARGE).read_bytes() == b"other"
        (mountpoint / "after").write_text("after")
        assert mount_table(mountpoint.parent) == [str(mountpoint)]


def test_open_files_stay_readable_and_writable_after_a_refresh(
    source: Path, mountpoint: Path, cache: CacheOptions, writable: MountOptions
) -> None:
    with opened(source, mountpoint, cache, writable) as handler:
        handler.wait(LIMIT_S)
        content = (source / LARGE).read_bytes()
        with (
            (mountpoint / LARGE).open("rb", buffering=0) as file,
            (mountpoint / "log").open("a") as log,
        ):
            assert file.read(100) == content[:100]
            log.write("before\n")
            (source / LARGE).write_bytes(b"other")
            assert handler.refresh() is True
            assert file.read() == content[100:]
            log.write("after\n")
        assert (mountpoint / LARGE).read_bytes() == b"other"
        assert (mountpoint / "log").read_text() == "before\nafter\n"


def test_a_killed_host_process_leaves_no_mount_or_files_behind(
    source: Path, mountpoint: Path, cache: CacheOptions, writable: MountOptions
) -> None:
    with opened(source, mountpoint, cache, writable):
        (mountpoint / "own").write_bytes(os.urandom(1_000_000))
        os.kill(the_process(HOST), signal.SIGKILL)
        # `os.path.ismount` returns False for a mount without a server.
        wait_until(lambda: mount_table(mountpoint.parent.parent) == [], LIMIT_S)
        wait_until(lambda: left(cache) == [], LIMIT_S)


def test_a_file_is_fetched_before_the_host_writes_to_it(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    needs("fuse", writable=True)
    lazy = MountOptions(backend="fuse", writable=True, is_prefetched=False)
    with opened(source, mountpoint, cache, lazy):
        # The file is copied before it is changed.
        with (mountpoint / LARGE).open("r+b") as file:
            file.seek(1_000_000)
            file.write(b"own")
        content = bytearray((source / LARGE).read_bytes())
        content[1_000_000:1_000_003] = b"own"
        assert (mountpoint / LARGE).read_bytes() == content


def test_an_unpacked_directory_is_writable(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    options = MountOptions(backend="unpack", writable=True)
    with opened(source, mountpoint, cache, options) as handler:
        (mountpoint / "own").write_text("own")
        (mountpoint / "script.sh").write_text("the host's")
        (mountpoint / "package/module.py").write_text("ANSWER = 0\n")
        (source / "package/module.py").write_text("ANSWER = 43\n")
        assert handler.refresh() is True
        assert (mountpoint / "own").read_text() == "own"
        assert (mountpoint / "script.sh").read_text() == "the host's"
        # If both have changed the file, the version of the client is visible.
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 43\n"


def test_a_mount_of_another_program_on_top_is_not_removed(
    source: Path, mountpoint: Path, cache: CacheOptions, writable: MountOptions
) -> None:
    handler = opened(source, mountpoint, cache, writable).open()
    subprocess.run(["mount", "-t", "tmpfs", "other", mountpoint], check=True)
    try:
        (mountpoint / "other").write_text("other")
        (source / "added").write_text("added")
        handler.refresh()
        assert os.listdir(mountpoint) == ["other"] or (mountpoint / "added").exists()
    finally:
        while os.path.ismount(mountpoint):
            subprocess.run(["umount", mountpoint], check=True)
        handler.close()


#: Mounts without the privilege to mount.
_WITHOUT_RIGHTS = """
import sys
from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, MountForbidden, remotemount
source, mountpoint, folder, backend, writable = sys.argv[1:]
options = MountOptions(backend=backend, writable=writable == "True")
handler = remotemount(
    this_host(), source, mountpoint, cache=CacheOptions(folder=folder), mount=options
)
try:
    with handler:
        print(handler.explain())
except MountForbidden as error:
    print("forbidden:", str(error).splitlines()[0])
"""


def without_rights(*words: object) -> str:
    """Mount in a process without the privilege to mount."""
    program = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run(
        [*program, sys.executable, "-c", _WITHOUT_RIGHTS, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forbidden_mount_says_what_to_do(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    needs("fuse", writable=True)
    output = without_rights(source, mountpoint, cache.folder, "fuse", True)
    assert output.startswith("forbidden:")
    assert "run as root" in output
    assert left(cache) == []


def test_explain_says_why_files_are_unpacked_if_mounts_are_forbidden(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    needs("fuse", writable=True)
    output = without_rights(source, mountpoint, cache.folder, "auto", True)
    assert "unpack, as not fuse: " in output


def test_an_unknown_backend_is_rejected() -> None:
    with pytest.raises(ValueError, match="auto, fuse, unpack"):
        MountOptions(backend="magic")
    assert issubclass(MountForbidden, MountError)
