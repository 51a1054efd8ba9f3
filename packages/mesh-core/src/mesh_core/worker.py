"""`python -m mesh_core.worker`: serves this machine as a host of jobs, one after another."""

from __future__ import annotations

import argparse
import sys

from mesh_core._hosts.address import DEFAULT_PORT
from mesh_core._workers.serve import run_worker_loop_forever, run_worker_loop_until_shutdown

__all__: list[str] = []


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mesh_core.worker", description=__doc__)
    parser.add_argument(
        "--listen",
        default=f"tcp://127.0.0.1:{DEFAULT_PORT}",
        metavar="ADDRESS",
        help="where to listen (%(default)s); port 0 lets the system choose, and it is printed",
    )
    parser.add_argument(
        "--credentials",
        metavar="FOLDER",
        help="the worker's credentials, needed where other machines can reach the address",
    )
    parser.add_argument(
        "--until-shutdown",
        action="store_true",
        help="end when the owner of a job shuts its hosts down",
    )
    parser.add_argument(
        "--leave-grace",
        type=float,
        default=0.0,
        metavar="S",
        help="after SIGTERM, how long the processes of a job go on that their owner does not stop",
    )
    options = parser.parse_args(arguments)
    run = run_worker_loop_until_shutdown if options.until_shutdown else run_worker_loop_forever
    try:
        run(options.listen, credentials=options.credentials, leave_grace_s=options.leave_grace)
    except (ValueError, OSError) as error:
        print(f"mesh worker: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
