"""Compare recoveries: `python -m bench.recoveries --mesh PYTHON --torchrun PYTHON --ray PYTHON`.

Each system runs in an environment of its own, given by its interpreter. The systems take turns, and
all of them suffer the same kills in a round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.machine import ForeignLoad, description
from bench.recoveries.kills import KILLS, RANKS, Recovery, recoveries_of
from bench.recoveries.table import table

FOLDER = Path(__file__).parent
LIMIT_S = 400.0
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
#: The arguments for the interpreter of each system, before the folder and the seed.
SYSTEMS = {
    "FaultTolerantTraining": ("mesh", ("with_mesh.py",)),
    "run_spmd": ("mesh", ("with_run_spmd.py",)),
    "torchrun": ("torchrun", (*TORCHRUN, f"--max-restarts={KILLS}", "with_torchrun.py")),
    # The default of torchft is 5 s.
    "torchft": ("torchft", ("with_torchft.py", "5000")),
    "torchft, heartbeat timeout of 1 s": ("torchft", ("with_torchft.py", "1000")),
    "Ray Train": ("ray", ("with_ray_train.py",)),
}


def run(command: Sequence[str], folder: str, seed: int) -> list[Recovery]:
    """Run a training to its end and return its recoveries.

    Raises:
        subprocess.SubprocessError: The training failed or took too long.
    """
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    # The store that torchrun shares with the ranks keeps the gloo addresses of the previous round,
    # and the next round would connect to them: https://github.com/pytorch/pytorch/issues/167288.
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with (Path(folder) / "log").open("w") as log:
        subprocess.run(
            [*command, folder, str(seed)],
            cwd=FOLDER,
            env=env,
            stdout=log,
            stderr=log,
            timeout=LIMIT_S,
            check=True,
        )
    return recoveries_of(Path(folder), seed)


def measure(name: str, command: Sequence[str], seed: int) -> dict[str, Any] | None:
    """Run a system once and print its recoveries; return None if the training failed."""
    with tempfile.TemporaryDirectory() as folder, ForeignLoad() as load:
        try:
            recoveries = run(command, folder, seed)
        except (subprocess.SubprocessError, ValueError) as error:
            print(f"{name}, seed {seed}: {error}", file=sys.stderr)
            print((Path(folder) / "log").read_text()[-2000:], file=sys.stderr)
            return None
    for one in recoveries:
        print(
            f"{name}: rank {one.rank} killed in step {one.step}: {one.seconds:.2f} s, "
            f"{one.steps_repeated} steps repeated",
            flush=True,
        )
    each = [asdict(one) for one in recoveries]
    return {"system": name, "seed": seed, "foreign_cores": load.cores, "recoveries": each}


def main() -> None:
    """Run all systems whose interpreters are given, and print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    for interpreter in ("mesh", "torchrun", "torchft", "ray"):
        parser.add_argument(f"--{interpreter}", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("recoveries.json"))
    options = vars(parser.parse_args())
    found: dict[str, list[Recovery]] = {}
    runs = []
    for seed in range(options["rounds"]):
        for name, (interpreter, arguments) in SYSTEMS.items():
            if options[interpreter] is None:
                continue
            measured = measure(name, [options[interpreter], *arguments], seed)
            if measured is not None:
                runs.append(measured)
                recoveries = [Recovery(**one) for one in measured["recoveries"]]
                found.setdefault(name, []).extend(recoveries)
                record = {"machine": description(), "runs": runs}
                options["output"].write_text(json.dumps(record, indent=2))
    print(table(found))


if __name__ == "__main__":
    main()
