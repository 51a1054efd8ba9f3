"""A directory with every kind of entry that system calls may distinguish."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path

#: An unprivileged user who owns a few of the files.
OTHER_UID = 65534
LARGE_DIRECTORY_LEN = 10_001
#: The maximum number of links that the kernel follows; the chain has one more.
LINKS_MAX = 40
#: Existing and non-existing paths in the directory.
PATHS = [
    *("", "file", "empty", "directory", "directory/same", "directory/inner/file", "sparse"),
    *("link", "to-directory", "to-link", "to-directory/inner/file", "up-and-down", "outside"),
    *("directory/up", "dangling", "loop", "one-of-two", "through-file", "long", "odd"),
    *(f"chain{LINKS_MAX - 2}", f"chain{LINKS_MAX - 1}", f"chain{LINKS_MAX}"),
    *("fifo", "socket", "missing", "missing/below", "file/below", "file/", "link/", "directory/."),
    *("directory/../file", "fifo/below", "n" * 255, "n" * 256, "directory/" + "n" * 256),
    *("./" * 2100 + "file", "d/" * 1900, os.fsdecode(b"\xff\xfe not text"), "FILE", "file\n"),
]


def make(root: Path) -> None:
    """Create the directory, and the file `<root>-outside` next to it."""
    root.mkdir(mode=0o755)
    root.with_name(f"{root.name}-outside").write_bytes(b"outside")
    _make_files(root)
    _make_links(root)
    _make_specials(root)
    _make_guarded(root / "guarded")
    _make_many(root / "many")


def _make_files(root: Path) -> None:
    (root / "directory/inner").mkdir(parents=True)
    (root / "directory/empty").mkdir()
    (root / "file").write_bytes(bytes(number * number % 251 for number in range(300_001)))
    (root / "directory/inner/file").write_bytes(b"inner")
    (root / "empty").write_bytes(b"")
    with (root / "sparse").open("wb") as file:
        for place in (0, 1 << 20, (3 << 20) + 5):
            file.seek(place)
            file.write(b"data" * 20_000)
        file.truncate(8 << 20)
    with (root / "hole").open("wb") as file:
        file.truncate(1 << 20)
    with (root / "late").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"data")
    (root / ("n" * 255)).write_bytes(b"long name")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe not text")).write_bytes(b"odd name")
    os.link(root / "file", root / "directory/same")
    os.setxattr(root / "file", "user.note", b"a note")
    os.setxattr(root / "file", "user.empty", b"")
    os.setxattr(root / "directory", "user.long", bytes(range(256)) * 8)
    os.utime(root / "file", ns=(1_600_000_000_123_456_789,) * 2)
    os.utime(root / "empty", ns=(-1_500_000_000,) * 2)


def _make_links(root: Path) -> None:
    targets: dict[str, str | bytes] = {
        "link": "file",
        "to-directory": "directory",
        "to-link": "link",
        "dangling": "nowhere",
        "loop": "loop",
        "one-of-two": "other-of-two",
        "other-of-two": "one-of-two",
        "up-and-down": "directory/../directory/inner/../../file",
        "outside": f"{root}-outside",
        "through-file": "file/not-a-directory",
        "long": "x/" * 2000,
        "odd": b"\xff\xfe not text",
        "directory/up": "../file",
    }
    for name, target in targets.items():
        os.symlink(os.fsencode(target), os.fsencode(root / name))
    for number in range(LINKS_MAX + 1):
        (root / f"chain{number}").symlink_to(f"chain{number - 1}" if number else "file")


def _make_specials(root: Path) -> None:
    os.mkfifo(root / "fifo", 0o640)
    # Writing into a fifo changes its time, so writers use a separate one.
    os.mkfifo(root / "fifo-in-use")
    with socket.socket(socket.AF_UNIX) as unix:
        # The path of a socket has a length limit.
        place = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            unix.bind(f"/proc/self/fd/{place}/socket")
        finally:
            os.close(place)
    if os.geteuid() == 0:
        os.mknod(root / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.mknod(root / "far-device", stat.S_IFBLK | 0o600, os.makedev(259, 70_000))


def _make_guarded(folder: Path) -> None:
    """Create entries with all modes that may deny access."""
    folder.mkdir()
    for mode in (0o000, 0o400, 0o040, 0o004, 0o600, 0o644, 0o711, 0o755, 0o1777, 0o2755, 0o4755):
        for kind in ("file", "directory"):
            place = folder / f"{kind}{mode:04o}"
            if kind == "file":
                place.write_bytes(b"guarded")
            else:
                place.mkdir()
                (place / "inside").write_bytes(b"inside")
            if os.geteuid() == 0:
                owner, group = (OTHER_UID, 0) if mode == 0o400 else (0, OTHER_UID)
                os.chown(place, owner, group if mode in (0o400, 0o040) else 0)
            place.chmod(mode)
    # It prints the user with whose privileges it runs.
    shutil.copy(shutil.which("id") or "/usr/bin/id", folder / "id")
    (folder / "id").chmod(0o4755)


def _make_many(folder: Path) -> None:
    folder.mkdir()
    for number in range(LARGE_DIRECTORY_LEN):
        os.close(os.open(folder / f"entry{number}", os.O_CREAT | os.O_WRONLY, 0o644))
