"""Every reading system call behaves on a mount as in the directory, including its errors."""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_long,
    c_ubyte,
    c_ulong,
    c_ushort,
    c_void_p,
    create_string_buffer,
    get_errno,
    set_errno,
)
from pathlib import Path

import every_kind
import pytest
from conftest import needs
from every_kind import LARGE_DIRECTORY_LEN, LINKS_MAX, OTHER_UID, PATHS

from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, remotemount

LIMIT_S = 60.0

Pair = tuple[Path, Path]
Probe = Callable[[str], object]

_libc = CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The directory, and its mount."""
    needs("fuse")
    folder = tmp_path_factory.mktemp("pair")
    source, mountpoint = folder / "source", folder / "mount"
    every_kind.make(source)
    cache = CacheOptions(folder=str(folder / "chunks"))
    options = MountOptions(backend="fuse", allow_other=os.geteuid() == 0)
    with remotemount(this_host(), source, mountpoint, cache=cache, mount=options):
        yield source, mountpoint


def outcome(probe: Probe, root: Path) -> object:
    """Return the result of a call, or the name of its error."""
    try:
        return probe(str(root))
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def check(pair: Pair, probe: Probe, *context: object) -> object:
    """Check that a call behaves the same in both; return its result."""
    source, mountpoint = (outcome(probe, root) for root in pair)
    assert mountpoint == source, context
    return source


FLAGS = {
    name: getattr(os, name)
    for name in (
        *("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_PATH", "O_NONBLOCK", "O_CLOEXEC"),
        *("O_NOATIME", "O_SYNC", "O_DSYNC", "O_APPEND", "O_NOCTTY", "O_ASYNC", "O_DIRECT"),
    )
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("more", [0, os.O_NOFOLLOW, os.O_PATH])
def test_open_returns_the_same_result_or_error(pair: Pair, name: str, more: int) -> None:
    for path in PATHS:

        def probe(root: str, path: str = path) -> object:
            # Without O_NONBLOCK the open would wait for a writer of the fifo.
            descriptor = os.open(f"{root}/{path}", FLAGS[name] | more | os.O_NONBLOCK)
            try:
                return stat.S_IFMT(os.fstat(descriptor).st_mode)
            finally:
                os.close(descriptor)

        check(pair, probe, path)


def test_reads_at_each_offset_return_the_same_bytes(pair: Pair) -> None:
    size = (pair[0] / "file").stat().st_size
    places = [0, 1, 4095, 4096, 4097, 131_072, size - 1, size, size + 1, 1 << 40, (1 << 63) - 1, -1]
    for name in ("file", "empty", "sparse", "hole", "late", "directory", "fifo"):
        for place in places:
            for count in (0, 1, 100, 4096, 1 << 20):

                def probe(root: str, of: tuple[str, int, int] = (name, place, count)) -> object:
                    name, place, count = of
                    descriptor = os.open(f"{root}/{name}", os.O_RDONLY | os.O_NONBLOCK)
                    try:
                        return os.pread(descriptor, count, place)
                    finally:
                        os.close(descriptor)

                check(pair, probe, name, place, count)


def test_each_read_call_returns_the_same_bytes(pair: Pair) -> None:
    def with_file(call: Callable[[int], object], flags: int = 0) -> Probe:
        def probe(root: str) -> object:
            descriptor = os.open(f"{root}/file", os.O_RDONLY | flags)
            try:
                return call(descriptor)
            finally:
                os.close(descriptor)

        return probe

    def read_vector(descriptor: int) -> object:
        buffers = [bytearray(10), bytearray(70_000), bytearray(1)]
        return os.readv(descriptor, buffers), os.preadv(descriptor, buffers, 299_990), buffers

    def read_direct(descriptor: int) -> object:
        with mmap.mmap(-1, 65_536) as aligned:
            return os.preadv(descriptor, [aligned], 4096), aligned[:]

    def copy(by: Callable[[int, int], int]) -> Callable[[int], object]:
        def call(descriptor: int) -> object:
            with tempfile.TemporaryFile() as to:
                count = by(descriptor, to.fileno())
                to.seek(0)
                return count, to.read()

        return call

    check(pair, with_file(read_vector))
    check(pair, with_file(read_direct, os.O_DIRECT))
    check(pair, with_file(copy(lambda one, to: os.sendfile(to, one, 5, 200_000))))
    check(pair, with_file(lambda one: [os.read(one, 100_000) for _ in range(5)]))
    check(pair, with_file(lambda one: os.posix_fadvise(one, 0, 0, os.POSIX_FADV_WILLNEED)))
    # A copy between file systems may be refused; callers then read and write.
    copied = outcome(with_file(copy(lambda one, to: os.copy_file_range(one, to, 1000))), pair[1])
    assert copied in ("EXDEV", (1000, (pair[0] / "file").read_bytes()[:1000]))


def test_lseek_returns_the_same_offsets(pair: Pair) -> None:
    whences = [os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, os.SEEK_DATA, os.SEEK_HOLE, 9]
    for name in ("file", "empty", "sparse", "hole", "late", "fifo"):
        for place in (0, 1, 79_999, 80_000, 90_000, 1 << 20, 4 << 20, (8 << 20) - 1, 8 << 20, -1):
            for whence in whences:

                def probe(root: str, of: tuple[str, int, int] = (name, place, whence)) -> object:
                    name, place, whence = of
                    descriptor = os.open(f"{root}/{name}", os.O_RDONLY | os.O_NONBLOCK)
                    try:
                        return os.lseek(descriptor, place, whence)
                    finally:
                        os.close(descriptor)

                check(pair, probe, name, place, whence)


def attributes(status: os.stat_result) -> tuple[object, ...]:
    """Return the attributes from `stat` that do not depend on the file system."""
    own = () if stat.S_ISDIR(status.st_mode) else (status.st_nlink, status.st_size, status.st_rdev)
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, *own


def test_attributes_are_the_same(pair: Pair) -> None:
    for path in [*PATHS, "device", "far-device", "hole", "late"]:
        check(pair, lambda root, path=path: attributes(os.stat(f"{root}/{path}")), path)
        check(pair, lambda root, path=path: attributes(os.lstat(f"{root}/{path}")), path)
    # Holes occupy no space in the mount either.
    for name in ("sparse", "hole", "late", "file", "empty"):
        source, shown = (os.stat(root / name).st_blocks for root in pair)
        assert source - 8 < shown <= source, name


class Statx(Structure):
    """The beginning of the structure that `statx` fills."""

    _fields_ = (
        ("mask", c_int),
        ("block_len", c_int),
        ("attributes", c_ulong),
        ("links", c_int),
        ("uid", c_int),
        ("gid", c_int),
        ("mode", c_ushort),
        ("spare", c_ushort),
        ("number", c_ulong),
        ("size", c_ulong),
        ("rest", c_char * 208),
    )


def test_statx_returns_the_same(pair: Pair) -> None:
    # All fields except the access time, which a mount does not store.
    basic = 0x7DF
    for path in PATHS:
        for flags in (0, 0x100, 0x2000, 0x4000):  # No follow, and two kinds of sync.

            def probe(root: str, path: str = path, flags: int = flags) -> object:
                status = Statx()
                set_errno(0)
                place = os.fsencode(f"{root}/{path}")
                if _libc.statx(-100, place, flags, basic, byref(status)):
                    raise OSError(get_errno(), path)
                assert status.mask & basic == basic
                is_file = stat.S_ISREG(status.mode)
                return (
                    status.mode,
                    status.uid,
                    status.gid,
                    (status.links, status.size) if is_file else None,
                )

            check(pair, probe, path, flags)


#: Prints what another user may do with each of the paths in its folder.
_AS_OTHER_USER = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
paths, other_uid = json.load(sys.stdin)
os.setgroups([])
os.setresgid(other_uid, other_uid, other_uid)
os.setresuid(other_uid, other_uid, other_uid)
def access(path, mode):
    done = libc.access(os.fsencode(path), mode)
    if done:
        raise OSError(ctypes.get_errno(), path)
def tried(call, *args):
    try:
        return call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
def opened(path):
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.close(file)
results = {}
for path in paths:
    results[path] = {
        "access": [tried(access, path, mode) for mode in (0, 1, 4, 5)],
        "write": tried(access, path, 2),
        "open": tried(opened, path),
        "stat": tried(lambda: os.stat(path).st_mode),
        "list": tried(lambda: sorted(os.listdir(path))),
        "inside": tried(lambda: os.stat(path + "/inside").st_mode),
        "run": tried(os.execv, path, [path]) if not os.access(path, os.X_OK) else None,
    }
json.dump(results, sys.stdout)
"""


def as_other_user(folder: Path, paths: list[str]) -> dict[str, dict[str, object]]:
    # It changes the folder before it drops its privileges, because only root can access the
    # parents.
    done = subprocess.run(
        [sys.executable, "-c", _AS_OTHER_USER],
        input=json.dumps([paths, OTHER_UID]),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, dict[str, object]] = json.loads(done.stdout)
    return results


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_has_the_same_permissions(pair: Pair) -> None:
    paths = sorted(os.listdir(pair[0] / "guarded"))
    source, mountpoint = (as_other_user(root / "guarded", paths) for root in pair)
    writes = {path: (source[path].pop("write"), mountpoint[path].pop("write")) for path in paths}
    assert mountpoint == source
    assert {write for _, write in writes.values()} == {"EROFS"}
    assert {"EACCES", None} <= {write for write, _ in writes.values()}, "not all may be written"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_setuid_bit_of_a_program_is_ignored(pair: Pair) -> None:
    def identity(root: Path) -> int:
        words = ["./id", "-u"]
        return int(
            subprocess.check_output(words, cwd=root / "guarded", user=OTHER_UID, group=OTHER_UID)
        )

    assert (pair[1] / "guarded/id").stat().st_mode & stat.S_ISUID
    assert identity(pair[1]) == OTHER_UID
    if not os.statvfs(pair[0]).f_flag & os.ST_NOSUID:
        assert identity(pair[0]) == 0


def test_symlinks_resolve_to_the_same_targets(pair: Pair) -> None:
    for path in PATHS:
        check(pair, lambda root, path=path: os.readlink(f"{root}/{path}"), path)
    followed = [pair[1] / f"chain{count}" for count in (LINKS_MAX - 1, LINKS_MAX)]
    assert followed[0].stat().st_ino == (pair[1] / "file").stat().st_ino
    with pytest.raises(OSError, match="Too many levels"):
        followed[1].stat()


def test_hard_links_share_one_inode_number(pair: Pair) -> None:
    one, other = (pair[1] / name for name in ("file", "directory/same"))
    assert os.path.samefile(one, other)
    assert one.stat().st_nlink == 2
    numbers = [path.lstat().st_ino for path in pair[1].rglob("*")]
    assert len(numbers) - len(set(numbers)) == 1


def test_directory_listings_are_the_same(pair: Pair) -> None:
    def listed(root: str, path: str) -> object:
        with os.scandir(f"{root}/{path}") as entries:
            return sorted(
                (entry.name, entry.is_file(follow_symlinks=False), entry.is_symlink())
                for entry in entries
            )

    for path in PATHS:
        check(pair, lambda root, path=path: listed(root, path), path)
    assert len(os.listdir(pair[1] / "many")) == LARGE_DIRECTORY_LEN
    with os.scandir(pair[1]) as entries:
        assert all(entry.inode() == entry.stat(follow_symlinks=False).st_ino for entry in entries)


class Dirent(Structure):
    """An entry as returned by `readdir`."""

    _fields_ = (
        ("number", c_ulong),
        ("place", c_long),
        ("len", c_ushort),
        ("kind", c_ubyte),
        ("name", c_char * 256),
    )


def test_a_large_directory_can_be_read_from_each_offset(pair: Pair) -> None:
    _libc.opendir.restype = c_void_p
    _libc.readdir.restype = POINTER(Dirent)
    _libc.telldir.restype = c_long
    stream = c_void_p(_libc.opendir(c_char_p(os.fsencode(pair[1] / "many"))))
    assert stream

    def following(count: int) -> list[bytes]:
        entries = (_libc.readdir(stream) for _ in range(count))
        return [entry.contents.name for entry in entries if entry]

    try:
        places, names = [], []
        while piece := following(997):
            names += piece
            places.append((_libc.telldir(stream), len(names)))
        assert sorted({*names} - {b".", b".."}) == sorted(
            os.fsencode(name) for name in os.listdir(pair[0] / "many")
        )
        assert len(names) == LARGE_DIRECTORY_LEN + 2
        for place, count in reversed(places):
            _libc.seekdir(stream, c_long(place))
            assert following(10) == names[count : count + 10]
        _libc.rewinddir(stream)
        assert following(LARGE_DIRECTORY_LEN + 10) == names
    finally:
        _libc.closedir(stream)


def test_files_can_be_memory_mapped(pair: Pair) -> None:
    for name in ("file", "sparse", "hole", "late"):
        content = (pair[0] / name).read_bytes()
        with (pair[1] / name).open("rb") as file:
            for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
                with mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ) as mapped:
                    assert mapped[:] == content
                    assert mapped.find(b"never there at all") == -1
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as own:
                own[5:9] = b"mine"
            with pytest.raises(PermissionError):
                mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)
        assert (pair[1] / name).read_bytes() == content


def test_extended_attributes_are_the_same(pair: Pair) -> None:
    def names(root: str, path: str) -> object:
        listed = os.listxattr(f"{root}/{path}")
        return sorted(name for name in listed if name.startswith("user."))

    for path in PATHS:
        check(pair, lambda root, path=path: names(root, path), path)
        for name in ("user.note", "user.empty", "user.long", "user.none"):
            check(pair, lambda root, of=(path, name): os.getxattr(f"{root}/{of[0]}", of[1]), path)

    def short(root: str) -> object:
        buffer = create_string_buffer(3)
        if _libc.getxattr(os.fsencode(f"{root}/file"), b"user.note", buffer, 3) < 0:
            raise OSError(get_errno(), root)
        return buffer.raw

    assert check(pair, short) == "ERANGE"


def test_statvfs_describes_the_mount(pair: Pair) -> None:
    status = os.statvfs(pair[1])
    assert status.f_flag & os.ST_RDONLY
    assert status.f_flag & os.ST_NOSUID
    assert status.f_namemax == os.pathconf(pair[1], "PC_NAME_MAX") == 255
    assert status.f_bavail == status.f_bfree == 0
    assert status.f_ffree == 0
    # Several names of one file may count as one.
    assert status.f_files in (count := sum(1 for _ in pair[0].rglob("*")), count + 1)
    assert status.f_blocks * status.f_frsize >= 300_001


def test_fifos_and_sockets_behave_the_same(pair: Pair) -> None:
    def pass_through(root: str) -> object:
        both = os.open(f"{root}/fifo-in-use", os.O_RDWR | os.O_NONBLOCK)
        try:
            return os.write(both, b"through"), os.read(both, 100)
        finally:
            os.close(both)

    assert check(pair, pass_through) == (7, b"through")

    def call(root: str) -> object:
        place = os.open(root, os.O_RDONLY)
        try:
            with socket.socket(socket.AF_UNIX) as unix:
                return unix.connect(f"/proc/self/fd/{place}/socket")
        finally:
            os.close(place)

    assert check(pair, call) == "ECONNREFUSED"


def test_relative_paths_resolve_within_the_mount(pair: Pair) -> None:
    place = os.open(pair[1] / "directory/inner", os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert os.stat("file", dir_fd=place).st_size == 5
        assert os.stat("../../link", dir_fd=place).st_ino == (pair[1] / "file").stat().st_ino
        assert os.path.samefile(f"/proc/self/fd/{place}/..", pair[1] / "directory")
        assert os.readlink(f"/proc/self/fd/{place}") == str(pair[1] / "directory/inner")
        where = subprocess.check_output(["pwd", "-P"], cwd=pair[1] / "to-directory", text=True)
        assert where == f"{pair[1]}/directory\n"
    finally:
        os.close(place)
