"""Full disks, files that change too early, and processes that stop and die."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mount_processes import HOST, SOURCE, Reading, has_ended, processes, stopped, the_process

from mesh_core import ProcDied, this_host
from mesh_core.testing import wait_until
from mesh_fs import (
    CacheOptions,
    HostStatus,
    MountHandler,
    MountOptions,
    SnapshotError,
    StoreError,
    remotemount,
)

LIMIT_S = 60.0
LARGE = "package/inner/large.bin"
LAZY = MountOptions(is_prefetched=False)

pytestmark = pytest.mark.usefixtures("needs_mounts")


def only(handler: MountHandler) -> HostStatus:
    """Return the status of the only host."""
    status = handler.status().item()
    assert isinstance(status, HostStatus), status
    return status


def read_error(path: Path) -> int | None:
    """Return the error number of a read, or None if it succeeds."""
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


def mount_with_size(place: Path, size: str) -> None:
    """Mount a file system of this size, or resize it."""
    options = f"size={size},mode=700" + (",remount" if os.path.ismount(place) else "")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", str(place)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with a size of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a small file system")
    place = tmp_path.parent / f"{tmp_path.name}-disk"
    place.mkdir()
    mount_with_size(place, "2m")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_reported_and_does_not_affect_other_mounts(
    source: Path, mountpoint: Path, cache: CacheOptions, small_disk: Path
) -> None:
    full = CacheOptions(folder=str(small_disk / "chunks"))
    other = mountpoint.with_name("other")
    with (
        remotemount(this_host(), source, mountpoint, cache=full) as handler,
        remotemount(this_host(), source, other, cache=cache) as unharmed,
    ):
        handler.wait(LIMIT_S)
        assert "no space" in (only(handler).problem or "")
        assert not only(handler).is_complete
        assert read_error(mountpoint / LARGE) == errno.EIO
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 42\n"
        mount_with_size(small_disk, "32m")
        assert (mountpoint / LARGE).read_bytes() == (source / LARGE).read_bytes()
        unharmed.wait(LIMIT_S)
        assert only(unharmed).problem is None
        assert (other / LARGE).read_bytes() == (source / LARGE).read_bytes()


@pytest.mark.parametrize("backend", ["fuse", "unpack"])
def test_a_mount_fails_when_the_disk_is_already_full(
    source: Path, mountpoint: Path, small_disk: Path, backend: str
) -> None:
    full = CacheOptions(folder=str(small_disk / "chunks"))
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize))
    handler = remotemount(
        this_host(), source, mountpoint, cache=full, mount=MountOptions(backend=backend)
    )
    with pytest.raises((StoreError, SnapshotError), match="no space"):
        handler.open()
    assert not os.path.ismount(mountpoint)
    assert processes(HOST) == processes(SOURCE) == []


def test_a_file_changed_before_its_first_read_fails_until_the_next_refresh(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=LAZY) as handler:
        (source / LARGE).write_bytes(b"other bytes " * 300_000)
        assert read_error(mountpoint / LARGE) == errno.EIO
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 42\n"
        assert "changed on the client" in (only(handler).problem or "")
        assert handler.refresh() is True
        assert (mountpoint / LARGE).read_bytes() == (source / LARGE).read_bytes()
        assert only(handler).problem is None


def test_only_the_changed_part_of_a_file_fails(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    content = (source / LARGE).read_bytes()
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=LAZY) as handler:
        with (source / LARGE).open("r+b") as file:
            file.seek(2_500_000)
            file.write(b"changed")
        with (mountpoint / LARGE).open("rb", buffering=0) as shown:
            assert os.pread(shown.fileno(), 4096, 0) == content[:4096]
            with pytest.raises(OSError, match="Input/output error"):
                os.pread(shown.fileno(), 4096, 2_500_000)
        assert handler.refresh() is True
        assert (mountpoint / LARGE).read_bytes() == (source / LARGE).read_bytes()


def test_a_mount_serves_fetched_files_after_its_source_is_lost(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=LAZY) as handler:
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 42\n"
        with stopped(the_process(SOURCE)), Reading(mountpoint / LARGE) as suspended:
            suspended.wait_until_suspended()
            os.kill(the_process(SOURCE), signal.SIGKILL)
            assert suspended.result() == -errno.EIO
        began = time.monotonic()
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 42\n"
        assert sorted(os.listdir(mountpoint)) == sorted(os.listdir(source))
        assert read_error(mountpoint / "script.sh") == errno.EIO
        handler.wait(LIMIT_S)
        assert not only(handler).is_complete
        assert time.monotonic() - began < LAZY.read_limit_s / 2
        assert only(handler).problem == "all of its providers are lost"
        with pytest.raises(SnapshotError, match="open\\(\\) it again"):
            handler.refresh()
    assert handler.open() is handler
    assert (mountpoint / LARGE).read_bytes() == (source / LARGE).read_bytes()
    handler.close()


def test_a_refresh_restores_the_mount_of_a_killed_host_process(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=LAZY) as handler:
        with stopped(the_process(SOURCE)), Reading(mountpoint / LARGE) as suspended:
            suspended.wait_until_suspended()
            os.kill(the_process(HOST), signal.SIGKILL)
            assert suspended.result() in (-errno.ENOTCONN, -errno.ECONNABORTED, -errno.EIO)
        wait_until(lambda: not _is_in_mount_table(mountpoint), LIMIT_S)
        lost = handler.status().item()
        assert isinstance(lost, ProcDied)
        assert lost.signal == signal.SIGKILL
        assert "SIGKILL" in handler.explain()
        (source / "package/module.py").write_text("ANSWER = 43\n")
        assert handler.refresh() is True
        assert only(handler).is_open
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 43\n"


def _is_in_mount_table(place: Path) -> bool:
    return f" {place} " in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_blocked_read_can_be_interrupted_by_a_signal(
    source: Path, mountpoint: Path, cache: CacheOptions, number: int
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=LAZY):
        with stopped(the_process(SOURCE)), Reading(mountpoint / LARGE) as reading:
            reading.wait_until_suspended()
            began = time.monotonic()
            reading.signal(number)
            assert reading.status() == -number
            assert time.monotonic() - began < LAZY.read_limit_s / 2
        assert (mountpoint / LARGE).read_bytes() == (source / LARGE).read_bytes()


def test_a_read_that_times_out_fails_and_a_later_read_succeeds(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    hasty = MountOptions(is_prefetched=False, read_limit_s=0.5)
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=hasty):
        with stopped(the_process(SOURCE)):
            began = time.monotonic()
            assert read_error(mountpoint / "script.sh") == errno.EIO
            assert 0.4 < time.monotonic() - began < LIMIT_S / 2
        wait_until(lambda: read_error(mountpoint / "script.sh") is None, LIMIT_S)
        assert (mountpoint / "script.sh").read_bytes() == (source / "script.sh").read_bytes()


def test_a_mount_is_closed_while_its_source_hangs_and_a_read_is_blocked(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    handler = remotemount(this_host(), source, mountpoint, cache=cache, mount=LAZY).open()
    with stopped(the_process(SOURCE)), Reading(mountpoint / LARGE) as suspended:
        suspended.wait_until_suspended()
        assert only(handler).is_open
        handler.close()
        assert suspended.result() < 0
    assert not _is_in_mount_table(mountpoint)
    assert processes(HOST) == processes(SOURCE) == []


@pytest.mark.parametrize("chosen", ["one", "all"])
def test_chunks_damaged_on_disk_while_mounted_are_fetched_again(
    source: Path, mountpoint: Path, cache: CacheOptions, chosen: str
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache) as handler:
        handler.wait(LIMIT_S)
        assert (mountpoint / LARGE).read_bytes() == (source / LARGE).read_bytes()
        before = only(handler).fetched_bytes
        damage(cache, every=4096 if chosen == "all" else 1 << 30)
        least, most = (1, 300_000) if chosen == "one" else (2_000_000, 3_200_000)

        def is_fetched_again() -> bool:
            # The kernel may not drop all pages at once.
            forget(mountpoint / LARGE)
            assert (mountpoint / LARGE).read_bytes() == (source / LARGE).read_bytes()
            return only(handler).fetched_bytes - before >= least

        wait_until(is_fetched_again, LIMIT_S)
        assert only(handler).fetched_bytes - before <= most
        # The data that was fetched again is on the disk again.
        forget(mountpoint / LARGE)
        assert (mountpoint / LARGE).read_bytes() == (source / LARGE).read_bytes()
        assert only(handler).fetched_bytes - before <= most
        assert only(handler).problem is None


def test_a_damaged_chunk_that_cannot_be_fetched_again_is_an_error(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache) as handler:
        handler.wait(LIMIT_S)
        os.kill(the_process(SOURCE), signal.SIGKILL)
        damage(cache, every=4096)
        forget(mountpoint / LARGE)
        assert read_error(mountpoint / LARGE) == errno.EIO


def damage(cache: CacheOptions, every: int) -> None:
    """Overwrite bytes in the largest pack at this interval, at the latest from its middle on."""
    folder = cache.place()
    pack = max(folder.rglob("*"), key=lambda path: path.stat().st_size)
    size = pack.stat().st_size
    assert size > 3_000_000
    with pack.open("r+b") as file:
        for place in range(min(every, size // 2), size, every):
            file.seek(place)
            file.write(b"damaged by something else")


def forget(path: Path) -> None:
    """Drop a file from the page cache of the kernel."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


_PROGRAM = """
import sys
from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, remotemount
lazy = MountOptions(is_prefetched=False)
cache = CacheOptions(folder=sys.argv[3])
remotemount(this_host(), sys.argv[1], sys.argv[2], cache=cache, mount=lazy).open()
print("mounted", flush=True)
sys.stdin.read()
"""


def test_killing_the_client_fails_blocked_reads_and_leaves_no_mount(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    words = [sys.executable, "-c", _PROGRAM, str(source), str(mountpoint), str(cache.place())]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "mounted\n"
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 42\n"
        # These processes are orphans afterwards.
        left = [*processes(HOST), the_process(SOURCE)]
        with stopped(the_process(SOURCE)), Reading(mountpoint / LARGE) as suspended:
            suspended.wait_until_suspended()
            began = time.monotonic()
            program.send_signal(signal.SIGKILL)
            assert -suspended.result() in (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED)
            assert time.monotonic() - began < LAZY.read_limit_s / 2
        wait_until(lambda: not _is_in_mount_table(mountpoint), LIMIT_S)
        wait_until(lambda: all(map(has_ended, left)), LIMIT_S)
