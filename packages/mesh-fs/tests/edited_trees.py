"""A directory with random edits, and functions that check whether a mount shows it correctly.

Each file begins with a checksum of the rest, so that a reader of the whole file can tell whether it
has read one version of it or a mixture of two.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import shutil
import stat
import sys
from collections.abc import Callable, Iterator

SEAL_BYTES = 16
#: The visible properties of all entries of a tree, by path.
Entries = dict[bytes, tuple[object, ...]]
#: The unit in which the kernel caches and copies, so that a read of it is never torn by a change.
PAGE_BYTES = 4096

_NAMES = [b"a", b"b", b"module.py", b"with space", b"-dash", b"\xff\xfe", "ü".encode(), b"n" * 255]
_SIZES = [0, 1, 100, 4000, 4096, 20_000, 150_000, 400_000]


def sealed(body: bytes) -> bytes:
    """Prepend the checksum to the body of a file."""
    return hashlib.blake2b(body, digest_size=SEAL_BYTES).digest() + body


def is_one_version(content: bytes) -> bool:
    """Return whether the content is one version of a file; an empty file is one, too."""
    return not content or sealed(content[SEAL_BYTES:]) == content


def paths_below(root: bytes) -> Iterator[bytes]:
    """Yield everything below a directory; symbolic links are not followed."""
    for folder, folders, files in os.walk(root):
        yield from (os.path.join(folder, name) for name in [*folders, *files])


def seen(root: bytes) -> Entries:
    """Return the visible properties of all entries of a tree, by path."""
    found: Entries = {}
    for path in [root, *paths_below(root)]:
        status = os.lstat(path)
        content: object = None
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                content = file.read()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISDIR(status.st_mode):
            content = sorted(os.listdir(path))
        is_directory = stat.S_ISDIR(status.st_mode)
        # Sizes and link counts of directories depend on the file system.
        own = None if is_directory else (status.st_size, status.st_nlink)
        xattrs = {name: os.getxattr(path, name, follow_symlinks=False) for name in _user(path)}
        owner = status.st_uid, status.st_gid
        name = os.path.relpath(path, root)
        found[name] = (status.st_mode, status.st_mtime_ns, owner, own, xattrs, content)
    return found


def unprivileged(entries: Entries) -> Entries:
    """Return the same entries without setuid and setgid bits."""
    found: Entries = {}
    for name, (mode, *rest) in entries.items():
        assert isinstance(mode, int)
        found[name] = (mode & ~(stat.S_ISUID | stat.S_ISGID), *rest)
    return found


def differences(one: Entries, other: Entries) -> str:
    """Return the differences between two trees by entry and property; empty if they are equal."""
    fields = ("mode", "mtime", "owner", "size and links", "xattrs", "content")
    lines = []
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            lines.append(f"{name!r} is only in the {'first' if name in one else 'second'}")
            continue
        for field, here, there in zip(fields, one[name], other[name], strict=True):
            if here != there:
                lines.append(f"{name!r}: {field}: {here!r:.200} and {there!r:.200}")
    return "\n".join(lines)


def _user(path: bytes) -> list[str]:
    names = os.listxattr(path, follow_symlinks=False)
    return [name for name in names if name.startswith("user.")]


class EditedTree:
    """A directory and its next edit; the same seed makes the same edits.

    Attributes:
        steps: The edits so far, for the analysis of failures.
    """

    def __init__(self, root: bytes, seed: int) -> None:
        self.root = root
        self.steps: list[str] = []
        self._chance = random.Random(seed)
        self._edits: list[Callable[[], None]] = [
            *(self.write, self.append, self.insert, self.cut, self.truncate, self.make_sparse),
            *(self.write_in_secret, self.rename, self.rename_over, self.remove, self.replace_kind),
            *(self.make_directory, self.make_symlink, self.make_link, self.make_fifo),
            *(self.change_mode, self.change_owner, self.change_time, self.change_xattr),
        ]

    def begin(self) -> None:
        """Replace the tree by a new one."""
        for name in os.listdir(self.root):
            self._delete(os.path.join(self.root, name))
        for _ in range(3):
            self.make_directory()
        for _ in range(12):
            self.write()

    def step(self) -> None:
        """Make one edit."""
        self._chance.choice(self._edits)()

    def write(self) -> None:
        """Create a file, or overwrite one in place."""
        path = self._free() if self._chance.random() < 0.5 else self._file()
        self._put(path, self._bytes(self._chance.choice(_SIZES)))

    def append(self) -> None:
        path = self._file()
        self._put(path, self._body(path) + self._bytes(self._chance.choice(_SIZES)))

    def insert(self) -> None:
        path = self._file()
        body = self._body(path)
        at = self._chance.randint(0, len(body))
        self._put(path, body[:at] + self._bytes(self._chance.randint(1, 300)) + body[at:])

    def cut(self) -> None:
        path = self._file()
        body = self._body(path)
        start, end = sorted(self._chance.randint(0, len(body)) for _ in range(2))
        self._put(path, body[:start] + body[end:])

    def truncate(self) -> None:
        path = self._file()
        if self._chance.random() < 0.2:
            self._note("empty", path)
            os.truncate(path, 0)
        else:
            body = self._body(path)
            self._put(path, body[: self._chance.randint(0, len(body))])

    def make_sparse(self) -> None:
        """Create a hole before the end of a file, and perhaps one at the end."""
        path = self._file()
        hole = self._chance.randint(1, 500_000)
        tail = self._bytes(self._chance.choice([0, 1, 5000]))
        body = self._body(path) + bytes(hole) + tail
        self._note(f"hole of {hole} before {len(tail)}", path)
        with open(path, "r+b") as file:
            file.write(sealed(body)[:SEAL_BYTES])
            file.truncate(SEAL_BYTES + len(body))
            file.seek(SEAL_BYTES + len(body) - len(tail))
            file.write(tail)

    def write_in_secret(self) -> None:
        """Change the content of a file, but not its length and modification time."""
        path = self._file()
        times = os.stat(path)
        self._put(path, self._bytes(len(self._body(path))))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def rename(self) -> None:
        """Rename any entry to a free name, but no directory into itself."""
        path, to = self._any(), self._free()
        if not to.startswith(path + b"/"):
            self._note(f"rename {path!r} to", to)
            os.rename(path, to)

    def rename_over(self) -> None:
        """Rename a new file over an existing one, as editors do."""
        path, beside = self._file(), self._free()
        self._put(beside, self._bytes(self._chance.choice(_SIZES)))
        self._note(f"rename {beside!r} over", path)
        os.rename(beside, path)

    def remove(self) -> None:
        path = self._any()
        self._note("remove", path)
        self._delete(path)

    def replace_kind(self) -> None:
        """Replace a file by a directory, or the other way round."""
        path = self._any()
        was_directory = os.path.isdir(path) and not os.path.islink(path)
        self._note("another kind", path)
        self._delete(path)
        if was_directory:
            self._put(path, self._bytes(100))
        else:
            os.mkdir(path)

    def make_directory(self) -> None:
        path = self._free()
        self._note("directory", path)
        os.mkdir(path)

    def make_symlink(self) -> None:
        path = self._free()
        target = self._chance.choice([b"nowhere", b"..", b"a/../a", self._any(), b"t" * 3000])
        self._note(f"link to {target!r:.100}", path)
        os.symlink(target, path)

    def make_link(self) -> None:
        file, path = self._file(), self._free()
        self._note(f"the same as {file!r}", path)
        os.link(file, path)

    def make_fifo(self) -> None:
        path = self._free()
        self._note("fifo", path)
        os.mkfifo(path)

    def change_mode(self) -> None:
        path, mode = self._unlinked(), self._chance.choice([0o600, 0o644, 0o755, 0o4711, 0o2770])
        self._note(f"mode {mode:o}", path)
        os.chmod(path, mode)

    def change_owner(self) -> None:
        """Change the owner of an entry, if permitted."""
        if os.geteuid() == 0:
            path, owner = self._any(), self._chance.randint(0, 3000)
            self._note(f"owner {owner}", path)
            os.lchown(path, owner, owner + 1)

    def change_time(self) -> None:
        """Set a time before the epoch, in the past, or in the future."""
        path = self._any()
        time_ns = self._chance.choice([-1_500_000_000, 1, 1_600_000_000_123_456_789, 4 * 10**18])
        self._note(f"time {time_ns}", path)
        os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)

    def change_xattr(self) -> None:
        path, value = self._file(), self._bytes(self._chance.choice([0, 1, 100, 1000]))
        self._note(f"xattr of {len(value)}", path)
        os.setxattr(path, b"user.note", value)

    def _note(self, what: str, path: bytes) -> None:
        self.steps.append(f"{what}: {path[len(self.root) + 1 :]!r:.60}")

    def _put(self, path: bytes, body: bytes) -> None:
        self._note(f"write {len(body)}", path)
        with open(path, "wb") as file:
            file.write(sealed(body))

    def _body(self, path: bytes) -> bytes:
        with open(path, "rb") as file:
            return file.read()[SEAL_BYTES:]

    def _bytes(self, count: int) -> bytes:
        """Return random bytes, or a repetitive text like source code."""
        if self._chance.random() < 0.5:
            return self._chance.randbytes(count)
        word = b"%d " % self._chance.randrange(10**6)
        return (word * (count // len(word) + 1))[:count]

    def _all(self, is_wanted: Callable[[int], bool]) -> list[bytes]:
        return sorted(path for path in paths_below(self.root) if is_wanted(os.lstat(path).st_mode))

    def _file(self) -> bytes:
        """Return a file, which is created if none exists."""
        if files := self._all(stat.S_ISREG):
            return self._chance.choice(files)
        path = self._free()
        self._put(path, b"the only file")
        return path

    def _unlinked(self) -> bytes:
        """Return an entry that is not a symbolic link, and so has its own mode."""
        paths = self._all(lambda mode: not stat.S_ISLNK(mode))
        return self._chance.choice(paths) if paths else self._file()

    def _any(self) -> bytes:
        paths = self._all(lambda mode: True)
        return self._chance.choice(paths) if paths else self._file()

    def _free(self) -> bytes:
        """Return a path that does not exist."""
        while True:
            folder = self._chance.choice([self.root, *self._all(stat.S_ISDIR)])
            name = self._chance.choice(_NAMES)
            if self._chance.random() < 0.3:
                name = b"%d" % self._chance.randrange(1000)
            path = os.path.join(folder, name)
            # Callers that pass paths as text, to a link or to a program, have a lower limit.
            if not os.path.lexists(path) and len(path) < 2000:
                return path

    def _delete(self, path: bytes) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def read_until_told(root: bytes, seed: int) -> dict[str, object]:
    """Read at random until standard input is readable; return the observations."""
    chance = random.Random(seed)
    # The last text of each kind of error.
    reads, torn, errors = 0, [], dict[str, str]()
    while not select.select([0], [], [], 0)[0]:
        try:
            paths = list(paths_below(root))
        except OSError as error:
            errors[str(error.strerror)] = f"{error} in a listing"
            continue
        for path in chance.choices(paths, k=20) if paths else []:
            try:
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                content = _read(path)
            except OSError as error:
                errors[str(error.strerror)] = f"{error} in {path!r}"
                continue
            reads += 1
            # A file that is being written into a directory is incomplete until it gets its final
            # name.
            is_whole = not os.path.basename(path).startswith(b".mesh-unfinished")
            if is_whole and len(content) <= PAGE_BYTES and not is_one_version(content):
                torn.append(f"{path!r}: {content!r:.200} ... {content[-20:]!r}")
    return {"reads": reads, "torn": torn, "errors": errors}


def _read(path: bytes) -> bytes:
    """Read the beginning in one call and the rest in pieces, and drop it from the page cache."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        content = os.read(file, 2 * PAGE_BYTES)
        while os.read(file, 1 << 16):
            pass
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        return content
    finally:
        os.close(file)


if __name__ == "__main__":
    print("reads", flush=True)
    print(json.dumps(read_until_told(os.fsencode(sys.argv[1]), int(sys.argv[2]))))
