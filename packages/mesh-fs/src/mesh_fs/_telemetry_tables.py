"""The table `mounts` of mesh-telemetry: the mounts on each host."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TABLES"]


def _mounts() -> Iterator[dict[str, Any]]:
    # A process that has not imported the module has no mounts.
    files = sys.modules.get("mesh_fs._mount.host_mount")
    for status in [] if files is None else files.local_statuses():
        row = asdict(status)
        del row["host"]
        yield row


TABLES = {
    "mounts": (
        "Mounts of mesh-fs, on each host that shows them.",
        (
            "mountpoint s | path at which the files are mounted",
            "backend s | method by which they are shown: `fuse` or `unpack`",
            "why s | why this method is used",
            "is_complete b | whether all files are on the host",
            "is_open b | whether the files are shown",
            "files u64 | number of files",
            "total_bytes u64 | bytes to fetch, counting each chunk once",
            "here_bytes u64 | bytes of these that are on the host",
            "fetched_bytes u64 | bytes received over the network or from other processes",
            "cached_bytes u64 | bytes in the cache of the host, for all mounts",
            "problem s? | problem with some of the files",
        ),
        _mounts,
    )
}
