"""The number of threads that numerical libraries start in each process of a host.

By default each process would start one thread per processor of the host, and the processes of a
host would compete for its processors.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["VARIABLE", "apply_thread_limit", "thread_limit"]

# Read by OpenMP, OpenBLAS, MKL and PyTorch.
VARIABLE = "OMP_NUM_THREADS"


def thread_limit(
    proc_count: int, cpus: frozenset[int] | None, environment: Mapping[str, str | None]
) -> int | None:
    """Return the number of threads for one of several processes; None to leave the default.

    Args:
        proc_count: The number of processes that share the host.
        cpus: The processors that the process is bound to, if any.
        environment: Its environment, which may already set the number.
    """
    if proc_count == 1 or environment.get(VARIABLE):
        return None
    share = len(os.sched_getaffinity(0)) // proc_count
    return max(1, share if cpus is None else min(share, len(cpus)))


def apply_thread_limit(count: int) -> None:
    """Limit the threads of libraries of this process, including those already imported."""
    os.environ[VARIABLE] = str(count)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # It has read the variable already.
        torch.set_num_threads(count)
