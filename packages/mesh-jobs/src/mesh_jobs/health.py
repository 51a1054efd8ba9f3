"""Check the health of a worker: `python -m mesh_jobs.health`.

The exit status is 0 if the worker on this machine serves a program or waits for one, and 1
otherwise. Container images use it as their health check.
"""

from __future__ import annotations

import argparse
import sys

__all__: list[str] = []

_PORT = 26602


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mesh_jobs.health", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="NAME", help="name or address (%(default)s)")
    add(
        "--port",
        type=int,
        default=_PORT,
        metavar="N",
        help="the worker's health port (%(default)s)",
    )
    add(
        "--timeout",
        type=float,
        default=5.0,
        metavar="S",
        help="time limit in seconds (%(default)s)",
    )
    given = parser.parse_args(arguments)
    try:
        # The import is here because grpcio is an optional dependency.
        from mesh_jobs._control.health_check import SERVING, plaintext_health  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("grpc", "grpc_health"):
            raise
        print("mesh health: torchmesh-jobs[control] is not installed: install it", file=sys.stderr)
        return 1
    status = plaintext_health(given.host, given.port, given.timeout)
    print(status)
    return 0 if status == SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
