"""Run the client script of a job inside the job: `python -m mesh_jobs._client.runner`.

Backends start it next to the workers. It stores the output and the exit status of the script in the
job's folder, and exits with the same status. If it is killed, the script and all its descendants
are terminated.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from mesh_jobs._atomic_files import write_json
from mesh_jobs._client.worker_shutdown import terminate_workers
from mesh_jobs._exec.supervised_process import Command, SupervisedProcess
from mesh_jobs._state.enclosing_job import client_environment
from mesh_jobs._worker.local_workers import all_workers, end_workers

__all__: list[str] = []


def main() -> int:
    """Run the command line and return the exit status of the script."""
    given = _arguments()
    epoch = _number(given.epoch)
    status_file = Path(given.folder, "workers", "client.json")
    stored = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "epoch": epoch,
        "started": time.time(),
        "status": None,
    }
    write_json(status_file, stored)
    status = _run(given)
    # Workers are terminated first: a program that sees the status may assume that the job has
    # released everything.
    if given.ends_hosts:
        terminate_workers(Path(given.folder), given.allocation_id)
    if given.ends_workers:
        end_workers(all_workers(given.allocation_id))
    write_json(status_file, {**stored, "status": status, "ended": time.time()})
    return status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mesh_jobs._client.runner", description=__doc__)
    add = parser.add_argument
    add(
        "--allocation-id",
        required=True,
        metavar="ID",
        help="id of the allocation that it belongs to",
    )
    add("--folder", required=True, metavar="FOLDER", help="folder with the state of the job")
    add("--context", required=True, metavar="NAME", help="context of the job in the script")
    add("--log", required=True, metavar="FILE", help="file for the output of the script")
    add("--workdir", required=True, metavar="FOLDER", help="working directory of the script")
    add("--epoch", default="0", metavar="N", help="number of times that the job was requeued")
    add(
        "--grace",
        type=float,
        metavar="S",
        help="on termination, signal the script, and kill it after this time; by default, the "
        "sender of the signal also signals the script",
    )
    add("--ends-workers", action="store_true", help="then terminate the workers of this machine")
    add("--ends-hosts", action="store_true", help="first terminate the workers of all machines")
    add("script", nargs="+", help="the script and its arguments")
    return parser.parse_args()


def _number(text: str) -> int:
    return int(os.environ[text.removeprefix("env:")] if text.startswith("env:") else text)


def _run(given: argparse.Namespace) -> int:
    env = client_environment(given.folder, given.context)
    command = Command((sys.executable, "-u", *given.script), env, given.workdir)
    log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    process: SupervisedProcess | None = None
    is_signalled = False

    def tell(number: int, _frame: FrameType | None) -> None:
        nonlocal is_signalled
        if process is None:
            sys.exit(128 + number)
        if given.grace is None or is_signalled:
            return
        is_signalled = True
        process.signal(number)
        timer = threading.Timer(given.grace, process.end)
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, tell)
    try:
        process = SupervisedProcess(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    finally:
        os.close(log)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
