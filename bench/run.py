"""Measure Mesh against its peer and the floors, and print the table of goals.

python bench/run.py core --peer-python PATH     the whole table, medians over three rounds
python bench/run.py core --only sync,failure    some rows of it
python bench/run.py hosts                       the table over several hosts, in namespaces
python bench/run.py jobs                        the table of jobs, on a SLURM cluster in namespaces
python bench/run.py rdma                        the table of memory to memory, on one host
python bench/run.py fs                          the table of mounts, on one host
python bench/run.py tensor                      the table of distributed tensors, on one host
python bench/run.py telemetry                   the table of telemetry, on one host
python bench/run.py record                      the cost of recording actors, on one host
python bench/run.py counts --check              the counts of a call; exit status 1 on a miss

The interpreter that runs this script is the one whose `mesh_core` is measured; it requires numpy.
PATH is an interpreter with `torchmonarch==0.7.0` and numpy. By default the peer is looked up in the
same interpreter; if it is not installed there, its column stays empty.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The script is started by its path, so the root of the repository is not on the module path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.accounting import adopt_orphans
from bench.goals import OURS, PEER, PEER_POLLING_1S, ROWS, Row
from bench.goals_fs import PEER_FILES
from bench.goals_fs import ROWS as ROWS_FS
from bench.goals_hosts import ROWS as ROWS_HOSTS
from bench.goals_jobs import ROWS as ROWS_JOBS
from bench.goals_rdma import PEER_RDMA
from bench.goals_rdma import ROWS as ROWS_RDMA
from bench.goals_record import ROWS as ROWS_RECORD
from bench.goals_telemetry import PEER_TELEMETRY
from bench.goals_telemetry import ROWS as ROWS_TELEMETRY
from bench.goals_tensor import PEER_TENSOR
from bench.goals_tensor import ROWS as ROWS_TENSOR
from bench.machine import description, memcpy_gb_s
from bench.measure import measure
from bench.plan import runs_of_round
from bench.results import Results, Verdict, judge
from bench.scale import FULL, QUICK
from bench.table import table

_HERE = Path(__file__).resolve().parent
_ROWS = {
    "core": ROWS,
    "hosts": ROWS_HOSTS,
    "jobs": ROWS_JOBS,
    "rdma": ROWS_RDMA,
    "fs": ROWS_FS,
    "tensor": ROWS_TENSOR,
    "telemetry": ROWS_TELEMETRY,
    "record": ROWS_RECORD,
}
_PEERS = (PEER, PEER_POLLING_1S, PEER_RDMA, PEER_FILES, PEER_TENSOR, PEER_TELEMETRY)

#: The exit status if a check could not be evaluated; 1 is a miss.
_UNJUDGED = 2


def main() -> int:
    """Run the measurements that the command line selects, and return the exit status."""
    arguments = _arguments()
    adopt_orphans()
    rows = _chosen(arguments)
    interpreters = {} if arguments.without_ours else {OURS: sys.executable}
    if arguments.peer_python is None and importlib.util.find_spec("monarch") is not None:
        arguments.peer_python = sys.executable
    if arguments.peer_python is not None:
        interpreters |= dict.fromkeys(_PEERS, arguments.peer_python)
    results = Results()
    machines = []
    errors: list[dict[str, Any]] = []
    for index in range(arguments.rounds):
        if arguments.command != "counts":
            machines.append({"load": os.getloadavg(), "memcpy_gb_s": memcpy_gb_s()})
        for run in runs_of_round(rows, tuple(interpreters), index):
            interpreter = interpreters.get(run.driver, sys.executable)
            error = measure(
                run, interpreter, index, results,
                is_quick=arguments.quick, quiet_wait_s=arguments.quiet_wait,
            )  # fmt: skip
            errors += [error] if error else []
    verdicts = [judge(row, where, results) for row in rows for where in row.placements]
    _report(verdicts, machines, results, errors, arguments)
    if arguments.command == "counts" and arguments.check:
        return _check_required(verdicts)
    return 1 if any(error["driver"] not in _PEERS for error in errors) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=[*_ROWS, "counts"])
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: 3)")
    parser.add_argument("--only", default="", help="rows, by their names, with commas between")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it all work?")
    parser.add_argument("--peer-python", help="interpreter with torchmonarch 0.7.0 and numpy")
    parser.add_argument("--without-ours", action="store_true", help="only the peer and floors")
    parser.add_argument("--check", action="store_true", help="fail when a required goal is missed")
    parser.add_argument(
        "--quiet-wait", type=float, default=3.0, metavar="S",
        help="how long a run may wait for others to stop using the machine (default: 3)",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.command == "counts":
        arguments.only, arguments.rounds = "counts", 1
    ids = _ids(arguments.command)
    unknown = set(filter(None, arguments.only.split(","))) - set(ids)
    if unknown:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}: choose of {', '.join(ids)}")
    return arguments


def _rows(command: str) -> tuple[Row, ...]:
    return _ROWS.get(command, ROWS)


def _ids(command: str) -> list[str]:
    return list(dict.fromkeys(row.id for row in _rows(command)))


def _chosen(arguments: argparse.Namespace) -> list[Row]:
    wanted = arguments.only.split(",") if arguments.only else _ids(arguments.command)
    return [row for row in _rows(arguments.command) if row.id in wanted]


def _report(
    verdicts: Sequence[Verdict],
    machines: Sequence[dict[str, Any]],
    results: Results,
    errors: Sequence[dict[str, Any]],
    arguments: argparse.Namespace,
) -> None:
    scale = QUICK if arguments.quick else FULL
    print(table(verdicts, scale.procs))
    print()
    about = description()
    print("machine:", ", ".join(f"{name} {value}" for name, value in about.items()))
    for index, machine in enumerate(machines):
        copies = ", ".join(f"{k} {v:.1f}" for k, v in machine["memcpy_gb_s"].items())
        load = " ".join(f"{x:.1f}" for x in machine["load"])
        print(f"round {index}: memcpy GB/s {copies}; load {load}; {_foreign(results, index)}")
    folder = _HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / time.strftime(f"{arguments.command}-%Y%m%d-%H%M%S.json")
    document = {
        "machine": about,
        "rounds": machines,
        "arguments": vars(arguments),
        "rows": [_as_json(verdict) for verdict in verdicts],
        "errors": errors,
        "lines": results.lines,
    }
    path.write_text(json.dumps(document, indent=1))
    print(f"every measurement: {path}")
    left = sum(
        line["left_behind"]
        for line in results.lines
        if line["metric"] == "run_s" and line["driver"] == OURS
    )
    if left:
        print(f"left behind: {left} processes of ours had to be ended: look for left_behind")
    for line in results.lines:
        if line["metric"] == "left_out":
            print(f"left out: {line['driver']}, {line['what']}: {line['why']}")
    for error in errors:
        print(f"failed: {error['driver']} {error['workload']} {error['placement']}")


def _foreign(results: Results, index: int) -> str:
    loads = [line["foreign_cores"] for line in results.lines if line["round"] == index]
    if not loads:
        return "no run"
    return f"others used {sum(loads) / len(loads):.2f} cores (most {max(loads):.2f})"


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "row": verdict.row.title.strip(),
        "placement": verdict.placement,
        "unit": verdict.row.unit,
        "ours": verdict.ours,
        "peer": verdict.peer,
        "floor": verdict.floor,
        "vs_peer": verdict.vs_peer,
        "vs_floor": verdict.vs_floor,
        "goal": verdict.row.goal(),
        "is_met": verdict.is_met,
    }


def _check_required(verdicts: Sequence[Verdict]) -> int:
    required = [verdict for verdict in verdicts if verdict.row.is_required]
    for verdict in required:
        if verdict.is_met is not True:
            where = f"{verdict.row.title}, {verdict.placement}"
            print(f"required: {where}: {verdict.word()}, goal {verdict.row.goal()}")
    if any(verdict.is_met is False for verdict in required):
        return 1
    return _UNJUDGED if any(verdict.is_met is None for verdict in required) else 0


if __name__ == "__main__":
    sys.exit(main())
