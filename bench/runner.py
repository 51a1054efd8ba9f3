"""Measure one workload with one driver in one placement.

Started by `run.py`; by hand: `python -m bench.runner mesh latency.sync plain`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from types import ModuleType

from bench.record import Recorder
from bench.scale import FULL, QUICK


def main() -> None:
    """Run the workload that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("driver", help="mesh, monarch, bare, or floors.<name>")
    parser.add_argument("workload", help="<module>.<function> in workloads/")
    parser.add_argument("placement", choices=["plain", "pinned"])
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.placement == "pinned":
        # Set before the framework starts a thread or a process, so that all of them inherit it.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if arguments.workload.startswith("tensor"):
        # Set before any module imports torch; the processes inherit it.
        os.environ["OMP_NUM_THREADS"] = "1"
    record = Recorder(arguments.driver, arguments.workload, arguments.placement)
    scale = QUICK if arguments.quick else FULL
    module, function = arguments.workload.split(".")
    workload = getattr(import_by_name(f"bench.workloads.{module}"), function)
    if module == "footprint":
        workload(arguments.driver, scale, record)
        return
    driver = import_by_name(f"bench.drivers.{arguments.driver}").driver()
    started = time.perf_counter()
    workload(driver, scale, record)
    record.value("run_s", time.perf_counter() - started, "s")
    driver.close()
    sys.stdout.flush()


def import_by_name(module: str) -> ModuleType:
    """Import a driver or a workload."""
    # Each interpreter has the packages of only some drivers and workloads, so imports are by name.
    return importlib.import_module(module)


if __name__ == "__main__":
    main()
