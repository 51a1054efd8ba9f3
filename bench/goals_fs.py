"""The goals of mesh-fs on one host, and which measurement answers each of them.

The column of the floor has what the goal compares with, from the same run: `cp -a` of the tree into
tmpfs, or the same reads of the tree in tmpfs. All of it lies in tmpfs: source, chunks and copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.goals import Row, Source
from bench.goals_hosts import NO_PEER

FILES = "mesh_fs"
PEER_FILES = "monarch_fs"
_WHOLE, _SMALL, _IMPORT = "files.whole", "files.small", "files.imports"


def _row(
    workload: str,
    metric: str,
    title: str,
    unit: str,
    *,
    floor: str | None = None,
    ratio: float | None = None,
    limit: float | None = None,
    peer: str = PEER_FILES,
) -> Row:
    against = None if floor is None else Source(workload, floor, FILES)
    source = Source(workload, metric, FILES)
    return Row(
        workload.partition(".")[2], title, unit, source,
        floor=against, peer=peer, floor_ratio=ratio, limit=limit,
    )  # fmt: skip


def _rows() -> Iterator[Row]:
    title = "523 MB tree mounted and read, cold; floor: cp -a"
    yield _row(_WHOLE, "cold", title, "s", floor="copy", ratio=2.0)
    yield _row(_WHOLE, "open", "  of this until it is mounted", "s")
    yield _row(_WHOLE, "again", "  all read again; floor: tmpfs", "s", floor="read")
    yield _row(_WHOLE, "second", "the same tree mounted by a second mount", "s", limit=1.0)
    yield _row(_WHOLE, "edit", "one small file edited, seen after", "s", limit=1.0)
    yield _row(_WHOLE, "edit_kib", "  bytes moved for its 8 KiB", "KiB", limit=80.0, peer=NO_PEER)
    yield _row(_WHOLE, "line_kib", "  for a line put into 117 MiB", "KiB", limit=64.2, peer=NO_PEER)
    yield _row(_WHOLE, "memory", "resident memory of the host's process", "MiB")
    title = "10,000 small files walked and read, warm; floor: tmpfs"
    yield _row(_SMALL, "warm", title, "s", floor="plain", ratio=2.0)
    title = "import of numpy from a mounted environment, warm; floor: tmpfs"
    yield _row(_IMPORT, "warm", title, "s", floor="plain", ratio=1.1, peer=NO_PEER)


ROWS: tuple[Row, ...] = tuple(_rows())
