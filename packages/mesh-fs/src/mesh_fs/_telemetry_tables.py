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
    for status in [] if files is None else files.shown_here():
        row = asdict(status)
        del row["host"]
        yield row


TABLES = {
    "mounts": (
        "Mounts of mesh-fs, on each host that shows them.",
        (
            "mountpoint s | where the files are",
            "backend s | how they are shown: `fuse`, `image` or `unpack`",
            "why s | why in this way",
            "is_complete b | whether all files are on the host",
            "is_open b | whether they are shown",
            "files u64 | how many files there are",
            "total_bytes u64 | what there is to fetch, each chunk once",
            "here_bytes u64 | what of that is on the host",
            "fetched_bytes u64 | what came over the network, or from other processes",
            "cached_bytes u64 | what the host keeps, of all mounts",
            "problem s? | what went wrong with some files",
        ),
        _mounts,
    )
}
