"""`python -m mesh_core.credentials`: makes the credentials of a job and of its workers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mesh_core._security.credentials import Credentials
from mesh_core._security.errors import CredentialsError

__all__: list[str] = []


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mesh_core.credentials", description=__doc__)
    parser.add_argument("folder", help="where to create a folder for each and one named controller")
    parser.add_argument("workers", nargs="+", metavar="WORKER", help="name of a worker")
    parser.add_argument(
        "--days", type=float, default=7.0, help="days until they expire (default: %(default)g)"
    )
    options = parser.parse_args(arguments)
    folder = Path(options.folder)
    try:
        if (folder / "controller").exists():
            # New credentials would belong to a different job than the ones already in use.
            credentials = Credentials.load(folder / "controller")
            print(f"{folder / 'controller'}: unchanged")
        else:
            credentials = Credentials.create(valid_for=options.days * 24 * 3600)
            credentials.save(folder / "controller")
            print(f"{folder / 'controller'}: for the program; it can issue others, keep it private")
        for name in options.workers:
            credentials.issue(role="worker", name=name).save(folder / name)
            print(f"{folder / name}: for the worker {name}; copy it there and nowhere else")
    except CredentialsError as error:
        print(f"mesh credentials: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
