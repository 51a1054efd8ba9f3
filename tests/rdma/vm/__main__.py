"""Run a command in the machine: `python -m tests.rdma.vm [--limit SECONDS] -- COMMAND`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.rdma.vm import job, kernel, machine
from tests.rdma.vm.impossible import Impossible
from tools.workspace import cache_folder

#: Maximum run time of the machine in seconds, including the boot.
LIMIT_S = 170

#: Exit status if no machine can run here.
NO_MACHINE = 125


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.rdma.vm", description=__doc__)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds, boot included")
    parser.add_argument("command", nargs="+", help="runs as it would here, and sees the same files")
    chosen = parser.parse_args(arguments)
    try:
        ready = kernel.ensure(cache_folder() / "vm")
        return machine.run(ready, job.here(chosen.command), chosen.limit)
    except Impossible as error:
        print(f"no machine: {error}", file=sys.stderr)
    except machine.NotEnded as error:
        print(f"the machine stopped before the command had ended:\n{error}", file=sys.stderr)
    return NO_MACHINE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
