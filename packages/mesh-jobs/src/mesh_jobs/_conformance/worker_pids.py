"""The workers on this machine, found with `ps` and thus independently of Mesh's own code."""

from __future__ import annotations

import subprocess

__all__ = ["worker_pids"]


def worker_pids(allocation_id: str) -> dict[tuple[str, int], int]:
    """Return the pid of each worker of an allocation on this machine, by mesh and rank."""
    command = ["ps", "-eww", "-o", "pid=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listed.splitlines():
        pid, *words = line.split()
        if "mesh_jobs.worker" in words and allocation_id in words:
            mesh, rank = words[words.index("--mesh") + 1], words[words.index("--rank") + 1]
            found[mesh, int(rank)] = int(pid)
    return found
