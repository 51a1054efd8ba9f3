"""Profile the program while it issues operations, with py-spy.

python -m bench.flame --out FOLDER/NAME     writes NAME.svg, prints the table

The samples are those of the calling thread, below the loop that issues operations. Time in C++ and
C code is attributed to the calling line.
"""

from __future__ import annotations

import argparse
import linecache
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.flame_graph import svg

#: Frames above this function belong to the benchmark.
_FROM = "issue_additions"
_RATE_HZ = 200

Stack = tuple[str, ...]


def main() -> None:
    """Take the samples, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--driver", default="mesh_tensor")
    parser.add_argument("--workload", default="tensor.hot_path")
    parser.add_argument("--lines", type=int, default=25, help="of the table")
    parser.add_argument("--out", type=Path, help="where the graph goes, without .svg")
    arguments = parser.parse_args()
    stacks = _sampled(arguments.driver, arguments.workload)
    if not stacks:
        raise SystemExit(f"no sample has {_FROM}: run the workload by hand")
    print(_table(stacks, arguments.lines))
    if arguments.out is not None:
        arguments.out.with_suffix(".svg").write_text(svg(_functions(stacks)))


def _sampled(driver: str, workload: str) -> Counter[Stack]:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "stacks"
        command = [
            str(Path(sys.executable).with_name("py-spy")), "record", "--format", "raw", "--gil",
            "--full-filenames", "--rate", str(_RATE_HZ), "--output", str(raw),
            "--", sys.executable, "-m", "bench.runner", driver, workload, "plain",
        ]  # fmt: skip
        subprocess.run(command, check=True)
        text = raw.read_text()
    stacks: Counter[Stack] = Counter()
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        names = frames.split(";")
        at = next((i for i, name in enumerate(names) if name.startswith(_FROM)), None)
        if at is not None:
            stacks[tuple(names[at:])] += int(count)
    return stacks


def _functions(stacks: Counter[Stack]) -> Counter[Stack]:
    found: Counter[Stack] = Counter()
    for stack, count in stacks.items():
        found[tuple(_function(frame) for frame in stack)] += count
    return found


def _function(frame: str) -> str:
    name, _, place = frame.rpartition(" (")
    return f"{name} ({Path(place.rpartition(':')[0]).name})"


def _table(stacks: Counter[Stack], lines: int) -> str:
    total = sum(stacks.values())
    own: Counter[str] = Counter()
    for stack, count in stacks.items():
        own[stack[-1]] += count
    parts = [f"{total} samples", "", "| share | where | line |", "| --- | --- | --- |"]
    for frame, count in own.most_common(lines):
        path, _, number = frame.rpartition(" (")[2].rstrip(")").rpartition(":")
        text = linecache.getline(path, int(number)).strip()
        parts.append(f"| {count / total:.1%} | `{_function(frame)}` | `{text}` |")
    return "\n".join(parts)


if __name__ == "__main__":
    main()
