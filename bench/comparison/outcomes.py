"""What a program sees when something goes wrong: `python -m bench.comparison.outcomes ray hung`.

Each scenario runs with the driver of a system and prints one JSON object. `serve` runs on the other
host of the scenario `host-lost`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.accounting import descendants
from bench.drivers.driver import Driver, NotOfferedError, Pending, TwoHosts
from bench.runner import import_by_name

#: How long a program waits for a reply that does not arrive, in seconds.
_PATIENCE_S = 60.0
_DEADLINE_S = 3.0
#: How long a program waits for an error after a host was lost, in seconds.
LOST_HOST_S_MAX = 120.0
_TEXT_MAX = 400


def hung(driver: Driver) -> dict[str, Any]:
    """Wait with a deadline for a call that never returns."""
    driver.start(2)
    with tempfile.TemporaryDirectory() as folder:
        pending = _begun(driver, Path(folder, "begun"))
        return _seen(lambda: pending.get(timeout=_DEADLINE_S))


def killed(driver: Driver) -> dict[str, Any]:
    """Kill a worker during a call to it, and call the other one afterwards."""
    driver.start(2)
    pids = driver.pids()
    with tempfile.TemporaryDirectory() as folder:
        pending = _begun(driver, Path(folder, "begun"))
        os.kill(pids[0], 9)
        return _seen(lambda: pending.get(timeout=_PATIENCE_S))


def out_of_memory(driver: Driver) -> dict[str, Any]:
    """Let a worker allocate memory until the kernel kills it."""
    driver.start(2)
    pending = driver.fill_memory(0)
    return _seen(lambda: pending.get(timeout=_PATIENCE_S))


def controller(driver: Driver) -> dict[str, Any]:
    """Start workers, name all processes, and wait to be killed."""
    driver.start(2)
    print(json.dumps({"pids": descendants(os.getpid())}), flush=True)
    sys.stdin.read()
    return {}


def host_lost(driver: Driver, hosts: TwoHosts) -> dict[str, Any]:
    """Call a worker on another host, which loses its power during the call."""
    driver.start_across(hosts)
    pending = _begun(driver, hosts.folder / "begun")
    print(json.dumps({"begun": True}), flush=True)
    found = _seen(lambda: pending.get(timeout=LOST_HOST_S_MAX))
    # The clock is the same for all processes of this machine.
    return {**found, "seen_at": time.monotonic()}


SCENARIOS: dict[str, Callable[[Driver], dict[str, Any]]] = {
    "killed": killed,
    "hung": hung,
    "out-of-memory": out_of_memory,
    "controller": controller,
}


def _begun(driver: Driver, path: Path) -> Pending:
    """Start a call that never returns, and wait until the worker has begun it."""
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        pending = driver.hang(0, str(path))
        if not select.select([fd], [], [], _PATIENCE_S)[0]:
            raise TimeoutError("the worker did not begin the call")
        return pending
    finally:
        os.close(fd)


def _seen(wait: Callable[[], Any]) -> dict[str, Any]:
    started = time.monotonic()
    try:
        wait()
    except NotOfferedError:
        raise
    except BaseException as error:
        return {
            "error": type(error).__name__,
            "text": _without_names(" ".join(str(error).split()))[:_TEXT_MAX],
            "seconds": round(time.monotonic() - started, 3),
        }
    return {"error": "", "text": "the call returned", "seconds": time.monotonic() - started}


def _without_names(text: str) -> str:
    """Replace the name and the addresses of this machine, which have no meaning to readers."""
    named = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node1", text)
    return re.sub(r"\b\d+\.\d+\.\d+\.\d+\b", "10.0.0.1", named)


def main() -> None:
    """Run the scenario that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("driver")
    parser.add_argument("scenario", choices=[*SCENARIOS, "host-lost", "serve"])
    parser.add_argument("--hosts", nargs=3, metavar=("PROGRAM", "WORKER", "FOLDER"))
    arguments = parser.parse_args()
    driver: Driver = import_by_name(f"bench.drivers.{arguments.driver}").driver()
    try:
        if arguments.hosts:
            program, worker, folder = arguments.hosts
            hosts = TwoHosts(program, worker, Path(folder))
            if arguments.scenario == "serve":
                driver.serve(hosts)
            found = host_lost(driver, hosts)
        else:
            found = SCENARIOS[arguments.scenario](driver)
    except NotOfferedError as error:
        found = {"error": "", "text": str(error), "seconds": 0.0}
    print(json.dumps(found), flush=True)
    # After a failure some systems wait long for the processes that they have lost.
    os._exit(0)


if __name__ == "__main__":
    main()
