"""The workers that run on this machine, as a user finds them."""

from __future__ import annotations

import subprocess


def worker_pids(order_id: str) -> dict[tuple[str, int], int]:
    """Gives the pid of each worker of an order, by mesh and rank."""
    listed = subprocess.run(
        ["ps", "-eww", "-o", "pid=,args="], capture_output=True, text=True, check=True
    )
    found = {}
    for line in listed.stdout.splitlines():
        pid, *words = line.split()
        if "mesh_jobs.worker" in words and order_id in words:
            mesh, rank = words[words.index("--mesh") + 1], words[words.index("--rank") + 1]
            found[mesh, int(rank)] = int(pid)
    return found
