"""`python -m mesh_core.worker`: serves this machine as a host of jobs, one after another."""

from __future__ import annotations

import argparse
import sys

from mesh_core._hosts.address import DEFAULT_PORT
from mesh_core._workers.serve import run_worker

__all__: list[str] = []


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mesh_core.worker", description=__doc__)
    parser.add_argument(
        "--listen",
        default=f"tcp://127.0.0.1:{DEFAULT_PORT}",
        metavar="ADDRESS",
        help="address to listen on (%(default)s); port 0: chosen by the system, and printed; "
        "fd://3: an inherited socket; DIAL@BIND: clients use another address, as with NAT",
    )
    parser.add_argument(
        "--credentials",
        metavar="FOLDER",
        help="the worker's credentials, required if other machines can reach the address",
    )
    parser.add_argument(
        "--until-shutdown",
        action="store_true",
        help="exit when the owner of a job shuts down its hosts",
    )
    parser.add_argument(
        "--leave-grace",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds that processes not stopped by the owner of the job can run after SIGTERM",
    )
    options = parser.parse_args(arguments)
    try:
        run_worker(
            options.listen,
            credentials=options.credentials,
            until_shutdown=options.until_shutdown,
            leave_grace_s=options.leave_grace,
        )
    except (ValueError, OSError) as error:
        print(f"mesh worker: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
