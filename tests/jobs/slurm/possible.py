"""Whether there can be a cluster on this machine, and if not, why."""

from __future__ import annotations

import os

from tests.hosts.world import possible
from tools import system


def why_not() -> str | None:
    """Returns why there can be no cluster here, or None where there can.

    Raises:
        FileNotFoundError: A program is missing: that is to be mended, not to be put up with.
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
