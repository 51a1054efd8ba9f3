"""Run the chaos tests: `python -m tests.hosts.chaos --minutes 10 --seed 7`."""

import argparse
import sys
from collections.abc import Callable

from tests.hosts.chaos.echo import EchoWorkload
from tests.hosts.chaos.fault_kinds import FAULT_KINDS
from tests.hosts.chaos.mesh import MeshWorkload
from tests.hosts.chaos.run import Settings, run
from tests.hosts.chaos.workload import Workload
from tests.hosts.world.possible import why_not

WORKLOADS: dict[str, Callable[[], Workload]] = {"mesh": MeshWorkload, "echo": EchoWorkload}


def main() -> int:
    """Run chaos and return an exit status: 0 if no call was lost, executed twice or hung."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the same faults for the same seed")
    parser.add_argument(
        "--hosts", type=int, default=5, help="including the host that makes the calls"
    )
    parser.add_argument("--concurrency", type=int, default=4, help="concurrent calls to each host")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between faults")
    parser.add_argument(
        "--hold", type=float, default=2.5, help="maximum duration of a fault in seconds"
    )
    parser.add_argument(
        "--load", type=int, default=0, help="CPU-bound processes that run concurrently"
    )
    parser.add_argument(
        "--without", nargs="*", default=[], choices=sorted(FAULT_KINDS), help="faults to leave out"
    )
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="mesh")
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    settings = Settings(
        seconds=options.minutes * 60,
        seed=options.seed,
        hosts=options.hosts,
        concurrency=options.concurrency,
        every_s=options.every,
        hold_max_s=options.hold,
        without=tuple(options.without),
        spinners=options.load,
    )
    print(f"{options.workload}: {settings}", flush=True)
    verdict = run(WORKLOADS[options.workload](), settings, lambda line: print(line, flush=True))
    print(f"\n{verdict.faults} faults\n\n{verdict}")
    return 0 if verdict.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
