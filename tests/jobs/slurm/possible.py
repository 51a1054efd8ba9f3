"""Whether this machine can run a SLURM cluster, and if not, the reason."""

from __future__ import annotations

import os

from tests.hosts.world import possible
from tools import system


def why_not() -> str | None:
    """Return the reason why no cluster can run here, or None if it can.

    Raises:
        FileNotFoundError: A program is not installed: install it, do not skip the tests.
    """
    if reason := possible.why_not():
        return reason
    if missing := system.missing(system.SLURM):
        raise FileNotFoundError(f"not installed: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        return "the daemons of SLURM run as root only"
    if not os.path.ismount("/sys/fs/cgroup"):
        return "slurmd wants /sys/fs/cgroup, which is not mounted"
    return None
