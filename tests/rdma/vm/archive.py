"""Archives in the `newc` format of cpio, which contain the initial files of the kernel."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

MAGIC = b"070701"

#: Name of the last entry of an archive.
TRAILER = "TRAILER!!!"

#: Alignment of names and contents in bytes.
ALIGNMENT = 4


@dataclass(frozen=True)
class Entry:
    """A file or a folder of an archive."""

    name: str
    mode: int
    content: bytes = b""


def folder(name: str) -> Entry:
    """Return an empty folder."""
    return Entry(name, stat.S_IFDIR | 0o755)


def program(name: str, content: bytes) -> Entry:
    """Return an executable file."""
    return Entry(name, stat.S_IFREG | 0o755, content)


def pack(entries: Iterable[Entry]) -> bytes:
    """Return an archive of these entries; concatenated archives are a valid archive, too."""
    numbered = enumerate([*entries, Entry(TRAILER, 0)], start=1)
    return b"".join(_packed(number, entry) for number, entry in numbered)


def _packed(number: int, entry: Entry) -> bytes:
    name = entry.name.encode() + b"\0"
    links, of_root, no_date, no_device = 1, [0, 0], 0, [0, 0, 0, 0]
    fields = [number, entry.mode, *of_root, links, no_date, len(entry.content), *no_device]
    header = MAGIC + b"".join(b"%08X" % field for field in [*fields, len(name), 0])
    return _padded(header + name) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
