"""The goals of mesh-fs, and the measurement for each of them.

The floor column contains the baseline of the goal from the same run: `cp -a` or `rsync -a` of the
tree into tmpfs, or the same reads of the original tree. Source, chunks and copy are in tmpfs,
except
for the rows about memory and torch, whose chunks are in the folder for temporary files.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.goals import Row, Source
from bench.goals_hosts import HOSTS, NO_PEER

FILES = "mesh_fs"
PEER_FILES = "monarch_fs"
_WHOLE, _RSYNC, _ACROSS = "files.whole", "files.rsync", "mounts.across"
_SMALL, _IMPORT, _MEMORY = "files.small", "files.imports", "files.memory"
#: Limit of the transferred data for an edit of 8 KiB: twice that size plus 64 KiB.
_EDIT_KIB_MAX = 80.0


def _row(
    workload: str,
    metric: str,
    title: str,
    unit: str,
    *,
    floor: str | Source | None = None,
    ratio: float | None = None,
    limit: float | None = None,
    peer: str = PEER_FILES,
    driver: str = FILES,
) -> Row:
    against = Source(workload, floor, driver) if isinstance(floor, str) else floor
    return Row(
        workload.partition(".")[2], title, unit, Source(workload, metric, driver),
        floor=against, peer=peer, floor_ratio=ratio, limit=limit,
    )  # fmt: skip


def _whole_rows() -> Iterator[Row]:
    cold = "523 MB tree mounted and read, cold; floor: cp -a"
    yield _row(_WHOLE, "cold", cold, "s", floor="copy", ratio=2.0)
    yield _row(_WHOLE, "cold", "  floor: rsync -a", "s", floor=_rsync("cold"))
    yield _row(_WHOLE, "open", "  of this until it is mounted", "s")
    yield _row(_WHOLE, "again", "  all read again; floor: tmpfs", "s", floor="read")
    second = "mounted a second time; floor: rsync"
    yield _row(_WHOLE, "second", second, "s", limit=1.0, floor=_rsync("again"))
    yield _row(_WHOLE, "second_kib", "  bytes moved", "KiB", limit=64.0, peer=NO_PEER)
    edit = "one small file edited, seen after; floor: rsync"
    yield _row(_WHOLE, "edit", edit, "s", limit=1.0, floor=_rsync("edit"))
    moved = "  bytes moved for its 8 KiB"
    yield _row(_WHOLE, "edit_kib", moved, "KiB", limit=_EDIT_KIB_MAX, peer=NO_PEER)
    line = "  for a line put into 117 MiB"
    yield _row(_WHOLE, "line_kib", line, "KiB", limit=64.2, peer=NO_PEER)


def _rsync(metric: str) -> Source:
    return Source(_RSYNC, metric, FILES)


def _across_rows() -> Iterator[Row]:
    """Yield the rows on hosts that are namespaces of this machine, where the peer cannot run."""

    def row(
        metric: str,
        title: str,
        unit: str,
        *,
        floor: str | None = None,
        ratio: float | None = None,
        limit: float | None = None,
    ) -> Row:
        return _row(
            _ACROSS, metric, title, unit,
            floor=floor, ratio=ratio, limit=limit, peer=NO_PEER, driver=HOSTS,
        )  # fmt: skip

    title = "the tree on 4 hosts: sent by the client; floor: a copy"
    yield row("link", title, "MiB", floor="tree", ratio=1.05)
    yield row("cold", "  mounted and read on all", "s")
    yield row("second", "  mounted a second time", "s", limit=1.0)
    yield row("second_kib", "  bytes on the client's link for that", "KiB", limit=64.0)
    yield row("edit", "  one small file edited, seen on all", "s", limit=1.0)
    yield row("edit_kib", "  bytes on the link for its 8 KiB", "KiB", limit=_EDIT_KIB_MAX)


def _warm_rows() -> Iterator[Row]:
    title = "10,000 small files walked and read, warm; floor: tmpfs"
    yield _row(_SMALL, "warm", title, "s", floor="plain", ratio=2.0)
    torch = "import of torch from a mount, warm; floor: local disk"
    yield _row(_IMPORT, "warm", torch, "s", floor="plain", ratio=1.1, peer=NO_PEER)


def _memory_rows() -> Iterator[Row]:
    title = "memory of a host that has read all; floor: the tree"
    yield _row(_MEMORY, "all", title, "MiB", floor="tree", ratio=1.1)
    yield _row(_MEMORY, "process", "  of its process", "MiB")
    yield _row(_MEMORY, "shown", "  the kernel's, of what is mounted", "MiB")
    yield _row(_MEMORY, "kept", "  the kernel's, of chunks", "MiB")
    yield _row(_MEMORY, "left", "  left when memory is short", "MiB")


ROWS: tuple[Row, ...] = (*_whole_rows(), *_across_rows(), *_warm_rows(), *_memory_rows())
