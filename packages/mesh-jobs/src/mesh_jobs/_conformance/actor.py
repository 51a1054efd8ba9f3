"""The actor that the conformance tests run on hosts."""

from __future__ import annotations

import os

from mesh_core import Actor, HostMesh, endpoint

__all__ = ["Member", "pids_on"]

_ANSWER_S = 60.0


class Member(Actor):
    """Actor that reports its process."""

    @endpoint
    def pid(self) -> int:
        """Return the pid of its process."""
        return os.getpid()


def pids_on(hosts: HostMesh) -> list[int]:
    """Start a process on each host, return the pids of these processes, and stop them."""
    procs = hosts.spawn_procs({"procs": 1})
    pids = procs.spawn("members", Member).pid.call().get(timeout=_ANSWER_S).values()
    procs.stop().get(timeout=_ANSWER_S)
    return list(pids)
