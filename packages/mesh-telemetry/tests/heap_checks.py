"""Snapshots of actors that leak, and the rows of the line that leaks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import leaking_actors

SOURCE = Path(leaking_actors.__file__)
LEAK_LINE = 1 + next(
    at for at, line in enumerate(SOURCE.read_text().splitlines()) if "# the leak" in line
)
LEAK = {"function": "leak", "file": str(SOURCE), "line": LEAK_LINE}


def while_it_runs(take: Callable[[], Any], act: Callable[[], object]) -> Any:
    """Repeat an action while a snapshot is taken; return the snapshot."""
    with ThreadPoolExecutor(1) as pool:
        taking: Future[Any] = pool.submit(take)
        while not taking.done():
            act()
        return taking.result()


def leaks_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if {name: row[name] for name in LEAK} == LEAK]
