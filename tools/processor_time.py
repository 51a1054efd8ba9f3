"""How busy the processors of this machine were."""

import os
from pathlib import Path


def machine_times() -> tuple[float, float]:
    """Return for how long all processors together were busy and idle since boot, in seconds."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, idle, waiting, *interrupts = map(int, first[1:8])
    hertz = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + sum(interrupts)) / hertz, (idle + waiting) / hertz
