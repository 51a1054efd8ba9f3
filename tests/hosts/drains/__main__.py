"""Move hosts under load: `python -m tests.hosts.drains --drains 1000 --seed 7`."""

import argparse
import sys

from tests.hosts.drains.run import run
from tests.hosts.world.possible import why_not


def main() -> int:
    """Run the moves and return an exit status: 0 if every call was executed once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drains", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the same hosts for the same seed")
    parser.add_argument("--state-mib", type=int, default=0, help="the state of each actor, in MiB")
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    state_bytes = options.state_mib << 20
    verdict = run(options.drains, options.seed, state_bytes, lambda line: print(line, flush=True))
    print(f"\n{verdict}")
    return 0 if verdict.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
