"""One process that measures one workload with one driver in one placement.

Started by `run.py`; by hand: `PYTHONPATH=bench python bench/runner.py mesh latency.sync plain`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time

from record import Recorder
from scale import FULL, QUICK


def main() -> None:
    """Runs the workload that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("driver", help="mesh, monarch, bare, or floors.<name>")
    parser.add_argument("workload", help="<module>.<function> in workloads/")
    parser.add_argument("placement", choices=["plain", "pinned"])
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.placement == "pinned":
        # Before the framework starts a thread or a process, so that all of them inherit it.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    record = Recorder(arguments.driver, arguments.workload, arguments.placement)
    scale = QUICK if arguments.quick else FULL
    module, function = arguments.workload.split(".")
    workload = getattr(importlib.import_module(f"workloads.{module}"), function)
    if module == "footprint":
        workload(arguments.driver, scale, record)
        return
    driver = importlib.import_module(f"drivers.{arguments.driver}").driver()
    started = time.perf_counter()
    workload(driver, scale, record)
    record.value("run_s", time.perf_counter() - started, "s")
    driver.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
