"""Directories of hosts, mounted on the client."""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from mesh_core import Credentials, HostMesh, attach_to_workers, this_host
from mesh_core.testing import kill_proc, proc_pid, wait_until
from mesh_fs import GatherMount, GatherOptions, MountError, gather_mount

pytest.importorskip("pyfuse3", reason="torchmesh-fs[gather] is not installed")
pytestmark = pytest.mark.usefixtures("needs_mounts")

LIMIT_S = 60.0
MIB = 1 << 20


@cache
def job_credentials() -> Credentials:
    """The credentials of this module's hosts.

    A program has one set of credentials for all of its connections, and other tests in this process
    may have set theirs: workers without credentials would not be reachable afterwards.
    """
    return Credentials.create()


@contextmanager
def attached(count: int, folder: Path) -> Iterator[HostMesh]:
    """Run workers on this machine, each a host, and shut them down at the end."""
    started = []
    for rank in range(count):
        keys = folder / f"keys-{rank}"
        job_credentials().issue(role="worker", name=f"host-{rank}").save(keys)
        command = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"]
        command += ["--credentials", str(keys)]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        )
    try:
        lines = [one.stdout.readline() for one in started if one.stdout is not None]
        addresses = [line.split()[-1] for line in lines]
        hosts = attach_to_workers(addresses, credentials=job_credentials())
        yield hosts
        hosts.shutdown().get(timeout=LIMIT_S)
    finally:
        for one in started:
            one.terminate()
        for one in started:
            one.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostMesh]:
    """Two hosts that are processes of this machine."""
    with attached(2, tmp_path_factory.mktemp("keys")) as hosts:
        yield hosts


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A directory for each of two hosts, with all kinds of files."""
    top = tmp_path / "remote"
    for rank in range(2):
        root = top / f"hosts_{rank}"
        (root / "folder/inner").mkdir(parents=True)
        (root / "empty").mkdir()
        (root / "folder/text").write_text(f"from host {rank}\n")
        (root / "folder/inner/large.bin").write_bytes(random.Random(rank).randbytes(3_000_000))
        (root / "program.sh").write_text("#!/bin/sh\necho run\n")
        (root / "program.sh").chmod(0o755)
        (root / os.fsdecode(b"odd \xff\n name")).write_text("odd")
        (root / "link").symlink_to("folder/text")
        (root / "absolute").symlink_to("/nowhere/at/all")
        os.mkfifo(root / "pipe")
        os.utime(root / "folder/text", ns=(1_600_000_000_123_456_789,) * 2)
    return top


@pytest.fixture
def one(remote: Path) -> Path:
    """The directory of the first host."""
    return remote / "hosts_0"


def listing(root: Path) -> dict[str, tuple[object, ...]]:
    """Return the properties of a tree that a walk observes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        seen = path.lstat()
        content = b""
        if stat.S_ISREG(seen.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(seen.st_mode):
            content = os.readlink(path).encode()
        name = str(path.relative_to(root))
        mode = seen.st_mode & ~0o222
        times = seen.st_mtime_ns, seen.st_ctime_ns
        found[name] = (mode, seen.st_nlink, seen.st_size, times, content)
    return found


def direct(root: Path, point: Path, **chosen: float) -> GatherMount:
    """Mount a directory of this machine on the same machine."""
    return gather_mount(this_host(), str(root), point, options=GatherOptions(**chosen))  # type: ignore[arg-type]


def test_each_host_has_a_folder(two_hosts: HostMesh, remote: Path, mountpoint: Path) -> None:
    with gather_mount(two_hosts, f"{remote}/$SUBDIR", mountpoint):
        assert sorted(path.name for path in mountpoint.iterdir()) == ["hosts_0", "hosts_1"]
        assert listing(mountpoint / "hosts_0") == listing(remote / "hosts_0")
        assert listing(mountpoint / "hosts_1") == listing(remote / "hosts_1")
        assert (mountpoint / "hosts_1/link").read_text() == "from host 1\n"
        assert not (mountpoint / "hosts_2").exists()
        assert os.statvfs(mountpoint).f_blocks > 0


def test_a_mesh_without_dimensions_has_no_folder(one: Path, mountpoint: Path) -> None:
    with direct(one, mountpoint) as mount:
        assert listing(mountpoint) == listing(one)
        assert mount.remote_mount_point == str(one)
        assert mount.local_mount_point == str(mountpoint)


def test_a_mount_is_read_only(one: Path, mountpoint: Path) -> None:
    with direct(one, mountpoint):
        for attempt in (
            lambda: (mountpoint / "new").write_text(""),
            lambda: (mountpoint / "program.sh").open("r+"),
            lambda: (mountpoint / "program.sh").unlink(),
            lambda: (mountpoint / "made").mkdir(),
            lambda: os.utime(mountpoint / "program.sh"),
        ):
            with pytest.raises(OSError, match="Read-only file system"):
                attempt()
        modes = [path.lstat().st_mode for path in mountpoint.rglob("*") if not path.is_symlink()]
        assert not any(mode & 0o222 for mode in modes)
        assert subprocess.check_output([mountpoint / "program.sh"]) == b"run\n"


def test_tail_sees_lines_as_they_are_written(one: Path, mountpoint: Path) -> None:
    log = one / "log"
    log.write_text("first\n")
    # Without change notifications from the host, no change would be visible during the test.
    with direct(one, mountpoint, attributes_ttl_s=3600):
        words = ["tail", "-f", "-s", "0.05", "-n", "+1", str(mountpoint / "log")]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() == "first\n"
            for number in range(20):
                with log.open("a") as file:
                    file.write(f"line {number}\n")
                assert tail.stdout.readline() == f"line {number}\n"
            tail.terminate()


def test_changes_are_visible_despite_cached_attributes(one: Path, mountpoint: Path) -> None:
    with direct(one, mountpoint, attributes_ttl_s=3600):
        text = mountpoint / "folder/text"
        assert text.read_text() == "from host 0\n"
        # The length is unchanged, and the modification time may be unchanged, too.
        (one / "folder/text").write_text("FROM HOST 0\n")
        wait_until(lambda: text.read_text() == "FROM HOST 0\n", LIMIT_S)
        (one / "folder/text").write_text("short")
        wait_until(lambda: text.read_text() == "short", LIMIT_S)
        (one / "other").write_text("another file")
        (one / "other").replace(one / "folder/text")
        wait_until(lambda: text.read_text() == "another file", LIMIT_S)
        (one / "folder/text").chmod(0o700)
        wait_until(lambda: stat.S_IMODE(text.stat().st_mode) == 0o500, LIMIT_S)
        (one / "folder/text").unlink()
        wait_until(lambda: not text.exists(), LIMIT_S)
        assert "text" not in os.listdir(mountpoint / "folder")
        (one / "empty").rmdir()
        wait_until(lambda: not (mountpoint / "empty").exists(), LIMIT_S)
        (one / "added").mkdir()
        (one / "added/file").write_text("new")
        # Missing names are not cached.
        assert (mountpoint / "added/file").read_text() == "new"
        wait_until(lambda: "added" in os.listdir(mountpoint), LIMIT_S)


def test_changes_are_visible_without_change_notifications(one: Path, mountpoint: Path) -> None:
    with direct(one, mountpoint, watches_max=0, attributes_ttl_s=0.1):
        text = mountpoint / "folder/text"
        assert text.read_text() == "from host 0\n"
        (one / "folder/text").write_text("FROM HOST 0\n")
        wait_until(lambda: text.read_text() == "FROM HOST 0\n", LIMIT_S)
        with text.open() as file:
            (one / "folder/text").write_text("much longer than before\n" * 1000)
            wait_until(lambda: os.fstat(file.fileno()).st_size == 24_000, LIMIT_S)
            assert file.read() == "much longer than before\n" * 1000
        (one / "folder/text").unlink()
        wait_until(lambda: not text.exists(), LIMIT_S)


def test_opening_a_file_shows_its_current_content(one: Path, mountpoint: Path) -> None:
    with direct(one, mountpoint, watches_max=0, attributes_ttl_s=3600):
        text = mountpoint / "folder/text"
        for number in range(20):
            (one / "folder/text").write_text(f"{number:06}")
            assert text.read_text() == f"{number:06}"
        for number in range(20):
            (one / "other").write_text(f"{number}" * (number + 1))
            (one / "other").replace(one / "folder/text")
            assert text.read_text() == f"{number}" * (number + 1)


def test_an_open_file_stays_readable_after_it_is_replaced(one: Path, mountpoint: Path) -> None:
    large = one / "folder/inner/large.bin"
    content = large.read_bytes()
    with direct(one, mountpoint, cache_bytes=MIB, read_ahead_bytes=0):
        with (mountpoint / "folder/inner/large.bin").open("rb", buffering=0) as file:
            assert file.read(1000) == content[:1000]
            (one / "other").write_text("another file")
            (one / "other").replace(large)
            file.seek(2_000_000)
            assert file.read(1000) == content[2_000_000:2_001_000]
        path = mountpoint / "folder/inner/large.bin"
        wait_until(lambda: path.read_bytes() == b"another file", LIMIT_S)


def test_a_large_file_is_read_with_a_small_cache(one: Path, mountpoint: Path) -> None:
    content = random.Random(0).randbytes(64 * MIB)
    (one / "large").write_bytes(content)
    with direct(one, mountpoint, cache_bytes=8 * MIB) as mount:
        with (mountpoint / "large").open("rb", buffering=0) as file:
            at = 0
            while piece := file.read(MIB):
                assert piece == content[at : at + len(piece)]
                at += len(piece)
                assert mount.cached_bytes() <= 8 * MIB
        assert at == len(content)


def test_a_part_of_a_file_is_read_without_fetching_the_whole_file(
    one: Path, mountpoint: Path
) -> None:
    content = (one / "folder/inner/large.bin").read_bytes()
    chance = random.Random(0)
    path = mountpoint / "folder/inner/large.bin"
    with direct(one, mountpoint) as mount, path.open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 100, 2_900_000) == content[2_900_000:2_900_100]
        # The file is not fetched as a whole for that.
        assert mount.cached_bytes() < 2 * MIB
        for _ in range(100):
            start, size = chance.randrange(3_100_000), chance.randrange(1, 300_000)
            assert os.pread(file.fileno(), size, start) == content[start : start + size]


def test_a_directory_with_many_files_is_listed(one: Path, mountpoint: Path) -> None:
    names = {f"{number:05}" for number in range(5000)}
    for name in names:
        (one / "empty" / name).touch()
    with direct(one, mountpoint):
        assert set(os.listdir(mountpoint / "empty")) == names
        with os.scandir(mountpoint / "empty") as found:
            assert {entry.name for entry in found if entry.is_file()} == names


def test_errors_of_the_host_are_raised_on_the_client(one: Path, mountpoint: Path) -> None:
    with direct(one, mountpoint):
        with pytest.raises(FileNotFoundError):
            (mountpoint / "nothing").stat()
        with pytest.raises(NotADirectoryError):
            os.listdir(mountpoint / "program.sh")
        with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
            (mountpoint / ("x" * 300)).stat()


def test_a_directory_may_be_created_after_the_mount(one: Path, mountpoint: Path) -> None:
    with direct(one / "later", mountpoint, attributes_ttl_s=0.1):
        assert mountpoint.is_dir()
        with pytest.raises(FileNotFoundError):
            os.listdir(mountpoint)
        (one / "later").mkdir()
        (one / "later/file").write_text("here")
        assert (mountpoint / "file").read_text() == "here"
        wait_until(lambda: os.listdir(mountpoint) == ["file"], LIMIT_S)


def test_a_lost_host_keeps_its_folder(remote: Path, mountpoint: Path) -> None:
    with (
        attached(2, remote) as hosts,
        gather_mount(hosts, f"{remote}/$SUBDIR", mountpoint) as mount,
    ):
        with (mountpoint / "hosts_1/folder/inner/large.bin").open("rb", buffering=0) as file:
            file.read(1000)
            kill_proc(mount._gathering.folders.call_one().get(), 1)
            wait_until(lambda: fails_with_eio(mountpoint / "hosts_1/folder/text"), LIMIT_S)
            file.seek(2_000_000)
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                file.read(1000)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.listdir(mountpoint / "hosts_1")
        assert sorted(os.listdir(mountpoint)) == ["hosts_0", "hosts_1"]
        assert (mountpoint / "hosts_1").is_dir()
        assert listing(mountpoint / "hosts_0") == listing(remote / "hosts_0")


def fails_with_eio(path: Path) -> bool:
    """Return whether a read fails as on a lost host."""
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno == errno.EIO
    return False


def test_a_read_from_an_unresponsive_host_times_out(remote: Path, mountpoint: Path) -> None:
    with attached(1, remote) as hosts:
        options = GatherOptions(read_limit_s=0.5)
        with gather_mount(hosts, f"{remote}/$SUBDIR", mountpoint, options=options) as mount:
            pid = proc_pid(mount._gathering.folders.call_one().get())
            assert (mountpoint / "hosts_0/folder/text").read_text() == "from host 0\n"
            os.kill(pid, signal.SIGSTOP)
            assert fails_with_eio(mountpoint / "hosts_0/folder/inner/large.bin")
            os.kill(pid, signal.SIGCONT)
            large = remote / "hosts_0/folder/inner/large.bin"
            path = mountpoint / "hosts_0/folder/inner/large.bin"
            wait_until(lambda: not fails_with_eio(path), LIMIT_S)
            assert path.read_bytes() == large.read_bytes()


def is_mounted(point: Path) -> bool:
    """Return whether a path is a mount point, even if its server is dead."""
    return f" {point} " in Path("/proc/self/mountinfo").read_text()


def test_a_mount_is_closed_while_files_are_open(one: Path, mountpoint: Path) -> None:
    mount = direct(one, mountpoint)
    file = (mountpoint / "folder/inner/large.bin").open("rb", buffering=0)
    file.read(1000)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mount.close()
    assert not is_mounted(mountpoint)
    with pytest.raises(OSError, match=r"not connected|Input/output|aborted"):
        file.read(1_000_000)
    with suppress(OSError):
        file.close()
    mount.close()
    with pytest.raises(MountError, match="closed"):
        mount.cached_bytes()


def test_a_mount_is_closed_while_a_host_is_unresponsive(remote: Path, mountpoint: Path) -> None:
    with attached(1, remote) as hosts:
        mount = gather_mount(hosts, f"{remote}/$SUBDIR", mountpoint)
        pid = proc_pid(mount._gathering.folders.call_one().get())
        large = mountpoint / "hosts_0/folder/inner/large.bin"
        words = ["sh", "-c", 'exec 3< "$1"; echo open; read word; exec cat <&3', "sh", str(large)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"open\n"
            os.kill(pid, signal.SIGSTOP)
            try:
                reader.stdin.write(b"\n")
                reader.stdin.flush()
                wait_until(lambda: is_waiting(reader.pid), LIMIT_S / 4)
                mount._gatherer.close.call_one().get(timeout=LIMIT_S / 4)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert reader.wait(LIMIT_S) != 0
        assert not is_mounted(mountpoint)
        mount.close()


def is_waiting(pid: int) -> bool:
    """Return whether a process waits for a read to complete."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "D"


def test_an_externally_unmounted_mount_can_be_closed(one: Path, mountpoint: Path) -> None:
    mount = direct(one, mountpoint)
    unmount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
    subprocess.run([*unmount, str(mountpoint)], check=True)
    mount.close()
    with direct(one, mountpoint):
        assert (mountpoint / "folder/text").read_text() == "from host 0\n"


PROGRAM = """
import sys
from mesh_core import this_host
from mesh_fs import gather_mount
mount = gather_mount(this_host(), sys.argv[1], sys.argv[2])
print("mounted", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_a_program_leaves_no_mount(one: Path, mountpoint: Path, how: str) -> None:
    words = [sys.executable, "-c", PROGRAM, str(one), str(mountpoint)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "mounted\n"
        assert is_mounted(mountpoint)
        if how == "killed":
            program.send_signal(signal.SIGKILL)
        program.stdin.close()
        program.wait(LIMIT_S)
        wait_until(lambda: not is_mounted(mountpoint), LIMIT_S)


def test_the_death_of_the_serving_process_leaves_no_mount(one: Path, mountpoint: Path) -> None:
    words = [sys.executable, "-c", PROGRAM.replace("sys.stdin.read()", KILL), one, mountpoint]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "mounted\n"
    wait_until(lambda: not is_mounted(mountpoint), LIMIT_S)


KILL = """
from mesh_core.testing import kill_proc
kill_proc(mount._procs)
sys.stdin.read()
"""


def test_invalid_operations_are_refused(one: Path, mountpoint: Path) -> None:
    with pytest.raises(MountError, match="relative"):
        gather_mount(this_host(), "there", mountpoint)
    with pytest.raises(MountError, match="not empty"):
        gather_mount(this_host(), str(one), one)
    with pytest.raises(MountError, match="is inside"):
        gather_mount(this_host(), str(mountpoint.parent.parent), mountpoint)
    with pytest.raises(ValueError, match="read_limit_s"):
        GatherOptions(read_limit_s=0)


def test_the_error_says_which_package_to_install(
    one: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_fs._gather.mount.find_spec", lambda _: None)
    with pytest.raises(MountError, match=r"install torchmesh-fs\[gather\]"):
        gather_mount(this_host(), str(one), mountpoint)
