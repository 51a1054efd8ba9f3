"""A directory of the client, mounted on hosts."""

from __future__ import annotations

import filecmp
import mmap
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import needs

from mesh_core import Actor, endpoint, this_host
from mesh_core.testing import wait_until
from mesh_fs import (
    CacheOptions,
    HostStatus,
    MountError,
    MountHandler,
    MountOptions,
    SnapshotError,
    SnapshotOptions,
    remotemount,
)

LIMIT_S = 60.0
BACKENDS = ["fuse", "unpack"]

pytestmark = pytest.mark.usefixtures("needs_mounts")


def only(handler: MountHandler) -> HostStatus:
    """Return the status of the only host, once it has everything."""
    status = handler.wait(LIMIT_S).item()
    assert isinstance(status, HostStatus), status
    return status


def listing(root: Path) -> dict[str, tuple[object, ...]]:
    """Return the properties of a tree that do not depend on its location."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        seen = path.lstat()
        content = b""
        if stat.S_ISREG(seen.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(seen.st_mode):
            content = os.readlink(path).encode()
        times = None if path.is_dir() else seen.st_mtime_ns
        size = None if path.is_dir() else seen.st_size
        owner = seen.st_uid, seen.st_gid
        name = str(path.relative_to(root))
        found[name] = (seen.st_mode, seen.st_nlink, times, size, owner, content)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mounted_tree_equals_the_tree_of_the_client(
    source: Path, mountpoint: Path, cache: CacheOptions, backend: str
) -> None:
    needs(backend)
    options = MountOptions(backend=backend)
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=options) as handler:
        assert listing(mountpoint) == listing(source)
        assert only(handler).backend == backend
        assert only(handler).is_complete


def test_files_are_fetched_when_they_are_read(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    lazy = MountOptions(is_prefetched=False)
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=lazy) as handler:
        status = handler.status().item()
        assert isinstance(status, HostStatus)
        assert status.fetched_bytes < 100_000
        assert (mountpoint / "package/module.py").read_text() == "ANSWER = 42\n"
        large = "package/inner/large.bin"
        assert filecmp.cmp(mountpoint / large, source / large, shallow=False)
        assert only(handler).fetched_bytes > 3_000_000


def test_programs_and_modules_run_from_a_mount(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache):
        completed = subprocess.run([mountpoint / "script.sh"], capture_output=True, text=True)
        assert completed.stdout == "from the mount\n"
        code = f"import sys; sys.path[0] = {str(mountpoint / 'package')!r}; import module"
        done = subprocess.run(
            [sys.executable, "-Bc", f"{code}; print(module.ANSWER)"], capture_output=True, text=True
        )
        assert done.stdout == "42\n", done.stderr


def test_mmap_statvfs_and_extended_attributes_work(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache):
        path = mountpoint / "package/inner/large.bin"
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == (source / "package/inner/large.bin").read_bytes()
        assert os.statvfs(mountpoint).f_files >= 8
        assert os.listxattr(mountpoint / "script.sh") == os.listxattr(source / "script.sh")


def test_a_mount_is_read_only(source: Path, mountpoint: Path, cache: CacheOptions) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache):
        for attempt in (
            lambda: (mountpoint / "new").write_text(""),
            lambda: (mountpoint / "script.sh").open("r+"),
            lambda: (mountpoint / "script.sh").unlink(),
            lambda: (mountpoint / "script.sh").rename(mountpoint / "other"),
            lambda: (mountpoint / "made").mkdir(),
            lambda: os.utime(mountpoint / "script.sh"),
        ):
            with pytest.raises(OSError, match="Read-only file system"):
                attempt()


@pytest.mark.parametrize("backend", BACKENDS)
def test_changes_are_seen_after_a_refresh(
    source: Path, mountpoint: Path, cache: CacheOptions, backend: str
) -> None:
    needs(backend)
    options = MountOptions(backend=backend)
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=options) as handler:
        assert listing(mountpoint) == listing(source)
        assert handler.refresh() is False
        (source / "package/module.py").write_text("ANSWER = 43\n")
        (source / "added").mkdir()
        (source / "added/file").write_text("new")
        (source / "empty").rmdir()
        (source / "link").unlink()
        (source / "link").write_text("no link any more")
        os.utime(source / "script.sh", ns=(1, 2))
        before = handler.sent_bytes()
        assert handler.refresh() is True
        assert only(handler).is_complete
        assert listing(mountpoint) == listing(source)
        assert handler.sent_bytes() - before < 20_000


def test_an_open_file_stays_readable_after_it_is_removed(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache) as handler:
        only(handler)
        with (mountpoint / "package/module.py").open() as file:
            (source / "package/module.py").unlink()
            assert handler.refresh() is True
            assert not (mountpoint / "package/module.py").exists()
            assert file.read() == "ANSWER = 42\n"


def test_a_second_mount_fetches_nothing(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache) as handler:
        assert only(handler).fetched_bytes > 3_000_000
    with remotemount(this_host(), source, mountpoint, cache=cache) as handler:
        assert only(handler).fetched_bytes == 0
        assert listing(mountpoint) == listing(source)


def test_a_chunk_that_is_damaged_on_disk_is_fetched_again(
    source: Path, mountpoint: Path, cache: CacheOptions, tmp_path: Path
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache) as handler:
        only(handler)
    part = (source / "package/inner/large.bin").read_bytes()[1_500_000:1_500_032]
    damaged_count = 0
    for pack in filter(Path.is_file, (tmp_path / "chunks").rglob("*")):
        stored = pack.read_bytes()
        # Two concurrent readers may both have fetched a chunk; one of the copies is then never
        # read.
        damaged_count += stored.count(part)
        with pack.open("r+b") as file:
            file.write(stored.replace(part, b"damaged by some other program..."))
    assert damaged_count > 0
    with remotemount(this_host(), source, mountpoint, cache=cache) as handler:
        assert listing(mountpoint) == listing(source)
        assert 0 < only(handler).fetched_bytes < 500_000


def test_ignored_files_are_not_mounted(source: Path, mountpoint: Path, cache: CacheOptions) -> None:
    (source / ".meshignore").write_text("*.bin\n")
    chosen = SnapshotOptions(ignore=("script.*",))
    with remotemount(this_host(), source, mountpoint, cache=cache, snapshot=chosen):
        names = listing(mountpoint).keys()
        assert "package/inner/large.bin" not in names
        assert "script.sh" not in names
        assert {"package/inner", "package/module.py", "same.sh"} <= names


def test_a_mount_is_closed_while_files_are_open(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    handler = remotemount(this_host(), source, mountpoint, cache=cache).open()
    file = (mountpoint / "package/module.py").open()
    handler.close()
    assert not os.path.ismount(mountpoint)
    # The kernel would have notified the file system of the close.
    with suppress(OSError):
        file.close()
    handler.close()


def test_an_actor_reads_a_mounted_file(source: Path, mountpoint: Path, cache: CacheOptions) -> None:
    class Reader(Actor):
        @endpoint
        def read(self, path: str) -> str:
            return Path(path).read_text()

    with remotemount(this_host(), source, mountpoint, cache=cache):
        reader = this_host().spawn_procs({"gpus": 2}).spawn("reader", Reader)
        read = reader.read.call(str(mountpoint / "link")).get(timeout=LIMIT_S)
        assert read.values() == ["ANSWER = 42\n"] * 2


def test_a_program_that_is_killed_leaves_no_mount(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    code = f"""
import sys
from mesh_core import this_host
from mesh_fs import CacheOptions, remotemount
remotemount(this_host(), {str(source)!r}, {str(mountpoint)!r}, cache={cache!r}).open()
print("mounted", flush=True)
sys.stdin.read()
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "mounted\n"
        assert os.path.ismount(mountpoint)
        program.send_signal(signal.SIGKILL)
        wait_until(lambda: not os.path.ismount(mountpoint), LIMIT_S)


def test_invalid_operations_are_refused(
    source: Path, mountpoint: Path, cache: CacheOptions, tmp_path: Path
) -> None:
    with pytest.raises(SnapshotError, match="not a directory"):
        remotemount(this_host(), tmp_path / "nowhere", mountpoint)
    with pytest.raises(MountError, match="relative"):
        remotemount(this_host(), source, "there")
    with pytest.raises(MountError, match="not empty"):
        remotemount(this_host(), source, cache=cache).open()
    closed = remotemount(this_host(), source, mountpoint, cache=cache)
    with pytest.raises(MountError, match="open"):
        closed.refresh()
    with closed as handler, pytest.raises(RuntimeError, match="refresh"):
        handler.open()


def test_explain_names_the_backend_and_the_reason(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    with remotemount(this_host(), source, mountpoint, cache=cache) as handler:
        assert "fuse, as this host permits mounting" in handler.explain()
