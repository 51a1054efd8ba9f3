"""Trees that are mounted as an image: fetching, mounting and removing it."""

from __future__ import annotations

import filecmp
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import mount_table, needs
from mount_processes import HOST, the_process

from mesh_core import this_host
from mesh_core.testing import wait_until
from mesh_fs import (
    CacheOptions,
    HostStatus,
    MountError,
    MountForbidden,
    MountHandler,
    MountOptions,
    StoreError,
    remotemount,
)

LIMIT_S = 60.0
IMAGE = MountOptions(backend="image")
LARGE = "package/inner/large.bin"


@pytest.fixture(autouse=True)
def needs_images() -> None:
    """Skip all of these tests if images cannot be mounted."""
    needs("image")


def only(handler: MountHandler) -> HostStatus:
    """Return the status of the only host."""
    status = handler.status().item()
    assert isinstance(status, HostStatus), status
    return status


def left(cache: CacheOptions) -> list[Path]:
    """Return the files that mounts have left in the host's chunk store."""
    return list((cache.place() / "shown").iterdir())


def test_it_is_mounted_when_all_is_there_and_nothing_is_left_of_it(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=IMAGE) as handler:
        assert only(handler).backend == "image"
        assert only(handler).is_complete
        assert only(handler).is_open
        assert "image, as it was requested" in handler.explain()
        assert filecmp.cmp(mountpoint / LARGE, source / LARGE, shallow=False)
        assert left(cache) != []
    assert left(cache) == []


def test_who_holds_a_directory_sees_it_as_it_was(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=IMAGE) as handler:
        held = os.open(mountpoint / "package", os.O_RDONLY)
        (source / "package/added.py").write_text("ADDED = 1\n")
        (source / "package/module.py").write_text("ANSWER = 43\n")
        assert handler.refresh() is True
        assert "added.py" not in os.listdir(held)
        with open(os.open("module.py", os.O_RDONLY, dir_fd=held)) as file:
            assert file.read() == "ANSWER = 42\n"
        os.close(held)
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 43\n"
        # There is one mount, and no second one on top of it.
        assert mount_table(mountpoint.parent) == [str(mountpoint)]


def test_an_edit_writes_what_is_different(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=IMAGE) as handler:
        (blocks,) = (cache.place() / "shown").glob("*/*.blocks")
        before = blocks.stat().st_size
        assert before >= 3_000_000 // 4096 * 4096
        (source / "package/more.bin").write_bytes(os.urandom(20_000))
        (source / "script.sh").rename(source / "renamed.sh")
        assert handler.refresh() is True
        assert blocks.stat().st_size - before == 20_000 // 4096 * 4096
        assert (mountpoint / "renamed.sh").read_bytes() == (source / "renamed.sh").read_bytes()
        assert filecmp.cmp(mountpoint / LARGE, source / LARGE, shallow=False)


def test_a_chunk_that_is_damaged_before_it_is_written_is_fetched_again(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=IMAGE):
        pass
    largest = max(cache.place().glob("*.pack"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as pack:
        for place in range(500_000, 2_500_000, 500_000):
            pack.seek(place)
            pack.write(b"damaged by something else")
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=IMAGE) as handler:
        assert filecmp.cmp(mountpoint / LARGE, source / LARGE, shallow=False)
        assert 0 < only(handler).fetched_bytes < 1_500_000


@pytest.mark.parametrize("size", ["2m", "5m"])
def test_a_full_disk_is_said_and_what_is_shown_is_not_harmed(
    source: Path, mountpoint: Path, cache: CacheOptions, tmp_path: Path, size: str
) -> None:
    # Either the chunks do not fit, or they do and the image does not.
    disk = tmp_path.parent / f"{tmp_path.name}-disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "d", disk], check=True)
    full = CacheOptions(folder=str(disk / "chunks"))
    other = mountpoint.with_name("other")
    try:
        with remotemount(this_host(), source, other, cache=cache, mount=IMAGE) as unharmed:
            with pytest.raises((StoreError, MountError), match="no space"):
                remotemount(this_host(), source, mountpoint, cache=full, mount=IMAGE).open()
            assert not os.path.ismount(mountpoint)
            assert left(full) == []
            assert only(unharmed).is_open
            assert filecmp.cmp(other / LARGE, source / LARGE, shallow=False)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_refresh_for_which_there_is_no_room_leaves_what_was_shown(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    small = CacheOptions(folder=cache.folder, budget_bytes=8 << 20)
    with remotemount(this_host(), source, mountpoint, cache=small, mount=IMAGE) as handler:
        (source / "more.bin").write_bytes(os.urandom(6_000_000))
        with pytest.raises(StoreError, match="but the limit is"):
            handler.refresh()
        assert not (mountpoint / "more.bin").exists()
        assert filecmp.cmp(mountpoint / LARGE, source / LARGE, shallow=False)
        (source / "more.bin").unlink()
        (source / "less.bin").write_bytes(b"less")
        assert handler.refresh() is True
        assert (mountpoint / "less.bin").read_bytes() == b"less"


def test_a_host_process_that_is_killed_leaves_nothing(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with (
        remotemount(this_host(), source, mountpoint, cache=cache, mount=IMAGE),
        (mountpoint / "package/module.py").open() as file,
    ):
        os.kill(the_process(HOST), signal.SIGKILL)
        wait_until(lambda: not os.path.ismount(mountpoint), LIMIT_S)
        wait_until(lambda: left(cache) == [], LIMIT_S)
        assert file.read() == "ANSWER = 42\n"


def test_files_in_memory_are_mounted_by_loop_devices_that_go_with_their_owner(
    source: Path, mountpoint: Path
) -> None:
    if not os.path.exists("/dev/loop-control"):
        pytest.skip("there are no loop devices")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cache = CacheOptions(folder=f"{folder}/chunks")
        with remotemount(this_host(), source, mountpoint, cache=cache, mount=IMAGE) as handler:
            (source / "added").write_bytes(os.urandom(9000))
            assert handler.refresh() is True
            assert (mountpoint / "added").read_bytes() == (source / "added").read_bytes()
            assert filecmp.cmp(mountpoint / LARGE, source / LARGE, shallow=False)
            os.kill(the_process(HOST), signal.SIGKILL)
            wait_until(lambda: not os.path.ismount(mountpoint), LIMIT_S)
            wait_until(lambda: left(cache) == [], LIMIT_S)
        listed = ["losetup", "--list", "--noheadings", "--output", "BACK-FILE"]
        wait_until(
            lambda: folder not in subprocess.run(listed, capture_output=True, text=True).stdout,
            LIMIT_S,
        )


def test_what_is_mounted_over_it_by_others_is_not_taken_away(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    handler = remotemount(this_host(), source, mountpoint, cache=cache, mount=IMAGE).open()
    subprocess.run(["mount", "-t", "tmpfs", "others", mountpoint], check=True)
    try:
        (mountpoint / "theirs").write_text("theirs")
        (source / "added").write_text("added")
        handler.refresh()
        assert os.listdir(mountpoint) == ["theirs"] or (mountpoint / "added").exists()
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


@pytest.mark.parametrize("writable", [False, True])
def test_where_nothing_may_be_mounted_it_is_said_what_to_do(
    source: Path, mountpoint: Path, cache: CacheOptions, writable: bool
) -> None:
    said = without_rights(source, mountpoint, cache.folder, "image", writable)
    assert said.startswith("forbidden:")
    assert "run as root" in said
    assert left(cache) == []


def test_it_says_why_neither_way_to_mount_is_taken(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    said = without_rights(source, mountpoint, cache.folder, "auto", True)
    assert "unpack, as not fuse: " in said
    assert "; not image: " in said


def test_a_way_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="fuse, image, unpack"):
        MountOptions(backend="magic")
    assert issubclass(MountForbidden, MountError)
