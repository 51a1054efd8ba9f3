"""Every writing system call on a mount is refused and changes nothing.

The expected errors are those of a read-only bind mount of the directory itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from ctypes import CDLL, get_errno
from pathlib import Path

import every_kind
import pytest
from conftest import needs

from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, remotemount

_libc = CDLL(None, use_errno=True)
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE, _WHITEOUT = 1, 2, 4
_SET_FLAGS = 0x4008_6602

KINDS = ["file", "empty", "directory", "directory/empty", "link", "directory/inner/file", "sparse"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A mount; its content must be the same at the end."""
    needs("fuse")
    folder = tmp_path_factory.mktemp("shown")
    source, mountpoint = folder / "source", folder / "mount"
    every_kind.make(source)
    cache = CacheOptions(folder=str(folder / "chunks"))
    options = MountOptions(backend="fuse")
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=options):
        before = _names(mountpoint)
        yield mountpoint
        assert _names(mountpoint) == before == _names(source)


def _names(root: Path) -> list[tuple[str, int, int]]:
    found = ((str(path.relative_to(root)), path.lstat()) for path in root.rglob("*"))
    return sorted((name, status.st_mode, status.st_mtime_ns) for name, status in found)


def error(call: Callable[[], object]) -> str | None:
    """Return the name of the error of a call, or None if it succeeds."""
    try:
        call()
    except OSError as raised:
        return errno.errorcode[raised.errno or 0]
    return None


@pytest.mark.parametrize("name", KINDS)
def test_existing_entries_cannot_be_changed(shown: Path, name: str) -> None:
    path = shown / name
    is_file, is_directory = path.is_file(), path.is_dir() and not path.is_symlink()
    now = (1_700_000_000_000_000_000,) * 2
    calls: dict[str, Callable[[], object]] = {
        "chmod": lambda: os.chmod(path, 0o777),
        "chown": lambda: os.chown(path, 1, 1),
        "lchown": lambda: os.lchown(path, 1, 1),
        "utime": lambda: os.utime(path),
        "utime of a link": lambda: os.utime(path, ns=now, follow_symlinks=False),
        "setxattr": lambda: os.setxattr(path, "user.note", b"other"),
        "removexattr": lambda: os.removexattr(path, "user.note"),
        "rename": lambda: os.rename(path, shown / "renamed"),
        "rename onto another": lambda: os.replace(path, shown / "odd"),
    }
    if is_file:
        calls |= {
            "truncate": lambda: os.truncate(path, 0),
            "link": lambda: os.link(path, shown / "linked"),
            "open to write": lambda: os.open(path, os.O_WRONLY),
            "open for both": lambda: os.open(path, os.O_RDWR),
            "open to append": lambda: os.open(path, os.O_WRONLY | os.O_APPEND),
            "open to truncate": lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        }
    if is_directory:
        calls |= {
            "rmdir": lambda: os.rmdir(path),
            "open without a name": lambda: os.open(path, os.O_WRONLY | os.O_TMPFILE),
        }
    else:
        calls["unlink"] = lambda: os.unlink(path)
    assert {what: error(call) for what, call in calls.items()} == dict.fromkeys(calls, "EROFS")


@pytest.mark.parametrize("folder", ["", "directory", "directory/empty", "to-directory"])
def test_new_entries_cannot_be_created(shown: Path, folder: str) -> None:
    new = shown / folder / "new"
    place = os.open(shown / folder, os.O_RDONLY)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: os.open(new, os.O_WRONLY | os.O_CREAT),
        "open to read": lambda: os.open(new, os.O_RDONLY | os.O_CREAT),
        "open one of its own": lambda: os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL),
        "mkdir": lambda: os.mkdir(new),
        "symlink": lambda: os.symlink("file", new),
        "mkfifo": lambda: os.mkfifo(new),
        "mknod": lambda: os.mknod(new, stat.S_IFREG | 0o644),
        "link": lambda: os.link(shown / "file", new),
        "bind": lambda: _bind(f"/proc/self/fd/{place}/new"),
        "rename": lambda: os.rename(shown / "file", new),
        "mkdir by its folder": lambda: os.mkdir("new", dir_fd=place),
    }
    try:
        assert {what: error(call) for what, call in calls.items()} == dict.fromkeys(calls, "EROFS")
    finally:
        os.close(place)


def _bind(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)


def test_an_open_file_cannot_be_changed(shown: Path) -> None:
    file = os.open(shown / "file", os.O_RDONLY)
    try:
        calls: dict[str, Callable[[], object]] = {
            "fchmod": lambda: os.chmod(file, 0o777),
            "fchown": lambda: os.chown(file, 1, 1),
            "futime": lambda: os.utime(file),
            "fsetxattr": lambda: os.setxattr(file, "user.note", b"other"),
        }
        assert {what: error(call) for what, call in calls.items()} == dict.fromkeys(calls, "EROFS")
        assert error(lambda: os.write(file, b"x")) == "EBADF"
        assert error(lambda: os.pwrite(file, b"x", 0)) == "EBADF"
        assert error(lambda: os.ftruncate(file, 0)) == "EINVAL"
        assert error(lambda: os.posix_fallocate(file, 0, 10)) == "EBADF"
    finally:
        os.close(file)


def test_calls_that_write_nothing_are_allowed(shown: Path) -> None:
    file = os.open(shown / "file", os.O_RDONLY | os.O_CREAT)
    try:
        os.fsync(file)
        os.fdatasync(file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = os.open(shown / "file", os.O_RDONLY)
        assert error(lambda: fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)) == "EAGAIN"
        os.close(other)
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(file)
    assert error(lambda: os.open(shown / "file", os.O_CREAT | os.O_EXCL)) == "EEXIST"
    assert error(lambda: os.mkdir(shown / "directory")) == "EEXIST"


def test_files_cannot_be_moved_into_or_out_of_the_mount(shown: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("outside")
    assert error(lambda: os.rename(tmp_path / "outside", shown / "in")) == "EXDEV"
    assert error(lambda: os.rename(shown / "file", tmp_path / "out")) == "EXDEV"
    assert error(lambda: os.link(shown / "file", tmp_path / "out")) == "EXDEV"
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


@pytest.fixture
def bound(shown: Path, tmp_path: Path) -> Iterator[Path]:
    """A read-only bind mount of the directory at another path."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a directory once more")
    place = tmp_path / "bound"
    place.mkdir()
    source = shown.with_name("source")
    subprocess.run(["mount", "-o", "bind,ro", str(source), str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def renamed(old: str, new: str, flags: int) -> None:
    """Rename with flags, which Python does not support."""
    names = os.fsencode(old), os.fsencode(new)
    if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flags) < 0:
        raise OSError(get_errno(), old)


def opened(path: str, flags: int) -> None:
    """Open a path without waiting for the other end of a fifo."""
    os.close(os.open(path, flags | os.O_NONBLOCK, 0o644))


def with_open(path: str, call: Callable[[int], object]) -> None:
    """Call a function with a file that is open for reading."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        call(file)
    finally:
        os.close(file)


#: Calls with the root and a path in it.
WRITES: dict[str, Callable[[str, str], object]] = {
    "chmod": lambda root, path: os.chmod(path, 0o777),
    "chown": lambda root, path: os.chown(path, 1, 1),
    "lchown": lambda root, path: os.lchown(path, 1, 1),
    "utimensat": lambda root, path: os.utime(path, ns=(1, 1)),
    "utimensat of a link": lambda root, path: os.utime(path, ns=(1, 1), follow_symlinks=False),
    "futimens": lambda root, path: with_open(path, lambda file: os.utime(file, ns=(1, 1))),
    "truncate": lambda root, path: os.truncate(path, 1),
    "ftruncate": lambda root, path: with_open(path, lambda file: os.ftruncate(file, 1)),
    "setxattr": lambda root, path: os.setxattr(path, "user.note", b"other"),
    "removexattr": lambda root, path: os.removexattr(path, "user.note"),
    "chattr": lambda root, path: with_open(
        path, lambda file: fcntl.ioctl(file, _SET_FLAGS, bytes(8))
    ),
    "open to write": lambda root, path: opened(path, os.O_WRONLY),
    "open for both": lambda root, path: opened(path, os.O_RDWR),
    "open to truncate": lambda root, path: opened(path, os.O_RDONLY | os.O_TRUNC),
    "open or make": lambda root, path: opened(path, os.O_WRONLY | os.O_CREAT),
    "open or make to read": lambda root, path: opened(path, os.O_RDONLY | os.O_CREAT),
    "make and open": lambda root, path: opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL),
    "make a directory by open": lambda root, path: opened(path, os.O_CREAT | os.O_DIRECTORY),
    "open without a name": lambda root, path: opened(path, os.O_RDWR | os.O_TMPFILE),
    "mkdir": lambda root, path: os.mkdir(path),
    "mkfifo": lambda root, path: os.mkfifo(path),
    "mknod": lambda root, path: os.mknod(path, stat.S_IFREG | 0o644),
    "mknod of a device": lambda root, path: os.mknod(path, stat.S_IFCHR, os.makedev(1, 3)),
    "symlink": lambda root, path: os.symlink("file", path),
    "link of it": lambda root, path: os.link(path, f"{root}/new"),
    "link to it": lambda root, path: os.link(f"{root}/file", path),
    "unlink": lambda root, path: os.unlink(path),
    "rmdir": lambda root, path: os.rmdir(path),
    "rename": lambda root, path: os.rename(path, f"{root}/new"),
    "rename to it": lambda root, path: os.rename(f"{root}/file", path),
    "rename into it": lambda root, path: os.rename(f"{root}/file", f"{path}/new"),
    "rename to what is new": lambda root, path: renamed(path, f"{root}/new", _NOREPLACE),
    "rename to what is there": lambda root, path: renamed(f"{root}/file", path, _NOREPLACE),
    "exchange": lambda root, path: renamed(path, f"{root}/file", _EXCHANGE),
    "white out": lambda root, path: renamed(path, f"{root}/new", _WHITEOUT),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_write_fails_with_the_error_of_a_read_only_bind_mount(
    shown: Path, bound: Path, what: str
) -> None:
    # One of the paths leads to a file outside, which is writable.
    paths = [path for path in every_kind.PATHS if path != "outside"]
    wrong = {}
    for path in paths:
        expected, actual = (
            error(lambda root=root, path=path: WRITES[what](str(root), f"{root}/{path}"))  # type: ignore[misc]
            for root in (bound, shown)
        )
        if actual != expected:
            wrong[path] = actual, expected
    assert wrong == {}
