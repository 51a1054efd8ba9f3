"""Measure all systems and write the page: `nox -s bench -- all`.

python -m bench.comparison --python mesh=PATH --python ray=PATH    measure, and write the page
python -m bench.comparison --python ... --only failure.sync       measure some workloads again
python -m bench.comparison --page                                  write it again from the ledger
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bench.accounting import adopt_orphans
from bench.comparison import page
from bench.comparison.failures import outcomes
from bench.comparison.rows import COMPARED
from bench.comparison.systems import SYSTEMS
from bench.goals import Row
from bench.machine import description, memcpy_gb_s
from bench.measure import measure
from bench.plan import Run
from bench.recoveries.kills import Recovery
from bench.recoveries.table import table
from bench.results import Results

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_LEDGER = _DOCS / "comparison.json"
_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
#: The fields of each measurement that the ledger stores in addition to its value.
_KEPT = ("driver", "workload", "placement", "metric", "value", "unit", "round", "foreign_cores")


def runs(index: int) -> list[Run]:
    """Return the runs of a round, in which the systems take turns at each workload."""
    found: dict[Run, None] = {}
    for workload in dict.fromkeys(row.source.workload for row in COMPARED):
        rows = [row for row in COMPARED if row.source.workload == workload]
        for placement in dict.fromkeys(place for row in rows for place in row.placements):
            for system in SYSTEMS:
                found[Run(system.driver, workload, placement)] = None
            for row in rows:
                if row.floor is not None and placement in row.placements:
                    found[Run(row.floor.driver, row.floor.workload, placement)] = None
    return [run for run in found if index == 0 or not _is_constant(run)]


def _is_constant(run: Run) -> bool:
    return run.workload.startswith(("anatomy", "footprint.sizes"))


def measured(
    interpreters: Mapping[str, str], rounds: int, workloads: Collection[str], *, is_quick: bool
) -> dict[str, Any]:
    """Measure the rows of some workloads, or of all if none is given."""
    results, errors, machines = Results(), [], []
    for index in range(rounds):
        machines.append(memcpy_gb_s())
        for run in runs(index):
            if workloads and run.workload not in workloads:
                continue
            interpreter = interpreters.get(run.driver)
            if interpreter is None and run.driver in {system.driver for system in SYSTEMS}:
                continue
            error = measure(
                run, interpreter or sys.executable, index, results,
                is_quick=is_quick, quiet_wait_s=3.0,
            )  # fmt: skip
            errors += [error] if error else []
    metrics = _metrics(COMPARED)
    lines = [
        {name: line[name] for name in _KEPT if name in line}
        for line in results.lines
        if (line["workload"], line["metric"]) in metrics
    ]
    return {"memcpy_gb_s": machines, "errors": errors, "lines": lines}


def ledger(interpreters: Mapping[str, str], rounds: int, *, is_quick: bool) -> dict[str, Any]:
    """Measure everything, and return the data from which the page is written."""
    speed = measured(interpreters, rounds, (), is_quick=is_quick)
    failures = {}
    for system in SYSTEMS:
        if system.driver in interpreters:
            failures[system.driver] = outcomes(system, interpreters[system.driver])
            print(f"{system.title}: {failures[system.driver]}", file=sys.stderr, flush=True)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {**description(), "kernel": platform.release().partition("-")[0]},
        "versions": _versions(interpreters),
        "rounds": rounds,
        "failures": failures,
        "recoveries": _recoveries(interpreters),
        **speed,
    }


def updated(found: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ledger in which the workloads that were measured again have the new figures."""
    known = (*again["lines"], *again["errors"])
    workloads = {one["workload"] for one in known}
    kept = {
        part: [one for one in found[part] if one["workload"] not in workloads]
        for part in ("lines", "errors")
    }
    return {**found, **{part: [*each, *again[part]] for part, each in kept.items()}}


def _dumped(found: Mapping[str, Any]) -> str:
    """Return a ledger as JSON with one line for each measurement."""
    head = json.dumps({name: value for name, value in found.items() if name != "lines"}, indent=1)
    lines = ",\n".join(f"  {json.dumps(line)}" for line in found["lines"])
    return f'{head.removesuffix("}").rstrip()},\n "lines": [\n{lines}\n ]\n}}\n'


def _recoveries(interpreters: Mapping[str, str]) -> str:
    """Return the table of the recoveries of a training, if the systems for it are installed."""
    if not {"mesh", "torchrun", "ray"} <= interpreters.keys():
        return ""
    torch = interpreters["torchrun"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "recoveries.json")
        options = [f"--mesh={interpreters['mesh']}", f"--ray={interpreters['ray']}"]
        options += [f"--torchrun={torch}", f"--torchft={torch}", f"--output={output}"]
        command = [sys.executable, "-m", "bench.recoveries", *options, "--rounds=1"]
        subprocess.run(command, check=True)
        runs_of_all = json.loads(output.read_text("utf-8"))["runs"]
    found: dict[str, list[Recovery]] = {}
    for one in runs_of_all:
        recoveries = [Recovery(**each) for each in one["recoveries"]]
        found.setdefault(one["system"], []).extend(recoveries)
    return table(found)


def _metrics(rows: tuple[Row, ...]) -> set[tuple[str, str]]:
    sources = [row.source for row in rows] + [row.floor for row in rows if row.floor is not None]
    return {(source.workload, source.metric) for source in sources}


def _versions(interpreters: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for system in SYSTEMS:
        if python := interpreters.get(system.driver):
            command = [python, "-c", _VERSION, system.distribution]
            found[system.title] = subprocess.check_output(command, text=True).strip()
    return found


def main() -> None:
    """Measure, or only write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", default=[], metavar="SYSTEM=PATH")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it all work?")
    parser.add_argument("--only", action="append", default=[], metavar="WORKLOAD")
    parser.add_argument("--page", action="store_true", help="write the page from the ledger")
    parser.add_argument("--output", type=Path, default=_LEDGER)
    options = parser.parse_args()
    adopt_orphans()
    interpreters = dict(one.split("=", 1) for one in options.python)
    if options.only:
        again = measured(interpreters, options.rounds, options.only, is_quick=options.quick)
        found = updated(json.loads(options.output.read_text("utf-8")), again)
        options.output.write_text(_dumped(found), "utf-8")
    elif not options.page:
        found = ledger(interpreters, options.rounds, is_quick=options.quick)
        options.output.write_text(_dumped(found), "utf-8")
    found = json.loads(options.output.read_text("utf-8"))
    if options.output == _LEDGER:
        page.write(found, _DOCS)


if __name__ == "__main__":
    main()
