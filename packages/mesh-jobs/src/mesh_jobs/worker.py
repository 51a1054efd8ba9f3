"""Serve a machine as a host of a job: `python -m mesh_jobs.worker`.

Backends start it. It listens on a port that the system chooses, reports its address, serves one
program after another, and exits when no program has used it for some time.
"""

from __future__ import annotations

import argparse
import sys

from mesh_jobs._imports import without_collections

with without_collections():
    from mesh_core import MeshError
    from mesh_jobs._worker.worker import WorkerOptions, serve

__all__: list[str] = []


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mesh_jobs.worker", description=__doc__)
    add = parser.add_argument
    add("--mesh", required=True, metavar="NAME", help="the mesh that this host belongs to")
    add("--rank", required=True, metavar="N", help="its rank; env:NAME reads a variable")
    add(
        "--secret",
        metavar="PATH",
        help="the secret or a folder of credentials, required off loopback; - reads stdin, "
        "env:NAME a variable; by default, the worker uses the credentials that all programs of "
        "its user share",
    )
    add("--report", metavar="FILE", help="file for its address, which is also printed")
    add("--listen", default="tcp://*:0", metavar="ADDRESS", help="listening address (%(default)s)")
    add("--port", type=int, metavar="N", help="port to listen on")
    add("--advertise", metavar="HOST", help="name or address by which others reach it, or env:NAME")
    add("--ttl", type=float, default=3600.0, metavar="S", help="exit when unused for S seconds")
    add("--epoch", default="0", metavar="N", help="number of earlier workers of this rank")
    add("--allocation-id", default="", metavar="ID", help="id of the allocation that it belongs to")
    add(
        "--termination-status",
        type=int,
        default=0,
        metavar="N",
        help="exit status after termination",
    )
    add("--control-port", type=int, default=0, metavar="N", help="port of the control service")
    add("--health-port", type=int, metavar="N", help="port that serves health in plaintext")
    add(
        "--leave-grace",
        type=float,
        default=0.0,
        metavar="S",
        help="grace period at termination for processes that their program does not stop",
    )
    given = parser.parse_args(arguments)
    try:
        is_unused = serve(
            WorkerOptions(
                mesh=given.mesh,
                rank=given.rank,
                secret=given.secret,
                report=given.report,
                listen=given.listen if given.port is None else _at_port(given.listen, given.port),
                advertise=given.advertise,
                ttl_s=given.ttl,
                epoch=given.epoch,
                allocation_id=given.allocation_id,
                control_port=given.control_port,
                health_port=given.health_port,
                leave_grace_s=given.leave_grace,
            )
        )
    except (MeshError, ValueError, OSError) as error:
        print(f"mesh worker: {error}", file=sys.stderr)
        return 2
    return 0 if is_unused else int(given.termination_status)


def _at_port(listen: str, port: int) -> str:
    return f"{listen.rpartition(':')[0]}:{port}"


if __name__ == "__main__":
    sys.exit(main())
