"""Memory cgroups of this machine, with either version of cgroups."""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def create_memory_cgroup(name: str, limit_bytes: int) -> Path:
    """Create a cgroup below the root with a limit, and return its folder.

    Raises:
        OSError: Memory cgroups cannot be created here.
    """
    is_unified = (_CGROUPS / "cgroup.controllers").exists()
    folder = (_CGROUPS if is_unified else _CGROUPS / "memory") / name
    folder.mkdir()
    limit = "memory.max" if is_unified else "memory.limit_in_bytes"
    (folder / limit).write_text(str(limit_bytes))
    return folder
