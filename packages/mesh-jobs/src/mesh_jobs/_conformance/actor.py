"""The actor that the conformance kit runs on hosts."""

from __future__ import annotations

import os

from mesh_core import Actor, HostMesh, endpoint

__all__ = ["Member", "pids_on"]

_ANSWER_S = 60.0


class Member(Actor):
    """Says who it is."""

    @endpoint
    def pid(self) -> int:
        """Gives the process that it runs in."""
        return os.getpid()


def pids_on(hosts: HostMesh) -> list[int]:
    """Starts one process on each host, asks it, and ends it."""
    procs = hosts.spawn_procs({"procs": 1})
    pids = procs.spawn("members", Member).pid.call().get(timeout=_ANSWER_S).values()
    procs.stop().get(timeout=_ANSWER_S)
    return list(pids)
