"""Program that reads a file of memray: it prints the allocations and draws a flame graph.

It runs as a separate process, because reading may take much time and memory, and is killed if it
exceeds its limits. It is executed by its path, and does not import Mesh.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import defaultdict
from typing import Any

import memray
from memray.commands import main as run_memray

_MEMORY_BYTES_MAX = 4 << 30
_NO_FRAME = ("<no Python frame>", "", 0)


def rows(path: str, *, is_peak: bool, count_max: int) -> list[list[Any]]:
    """Return the allocations by the innermost Python call, largest first.

    Args:
        path: The file of memray.
        is_peak: Whether to show the allocations at maximum memory use, instead of those left at the
            end.
        count_max: The number of calls to return; smaller ones are left out.
    """
    found: defaultdict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    with memray.FileReader(path) as reader:
        if is_peak:
            records = reader.get_high_watermark_allocation_records(merge_threads=True)
        else:
            records = reader.get_leaked_allocation_records(merge_threads=True)
        for record in records:
            stack = record.stack_trace(1)
            sums = found[tuple(stack[0]) if stack else _NO_FRAME]
            sums[0] += record.size
            sums[1] += record.n_allocations
    ordered = sorted(found.items(), key=lambda item: -item[1][0])
    return [[*call, *sums] for call, sums in ordered[:count_max]]


def draw(path: str, html: str, *, is_peak: bool) -> None:
    """Write the flame graph as a page that needs no network."""
    kind = [] if is_peak else ["--leaks"]
    status = run_memray(["flamegraph", "--force", "--no-web", *kind, "--output", html, path])
    if status:
        raise SystemExit(status)


def main() -> None:
    """Read the arguments, draw, and print the rows as the last line."""
    path, html, is_peak, count_max = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    found = rows(path, is_peak=is_peak == "1", count_max=int(count_max))
    draw(path, html, is_peak=is_peak == "1")
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
