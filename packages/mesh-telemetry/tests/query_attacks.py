"""SQL queries that consume all available resources, and their effects on a program."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

#: Ends at its deadline, or when its process is killed.
ENDLESS = "select sum(value % 7) as s from generate_series(1, 1000000000000000)"

#: A description of each query, the query, and a part of the error message.
GREEDY = {
    "a list": ("select range(1, 1000000000)", "MiB of memory"),
    "a list for each row": ("select range(1, 1000000000) from procs", "MiB of memory"),
    "a text": ("select length(repeat('x', 2000000000))", "MiB of memory"),
    "a large answer": ("select repeat('x', 50000000)", "exceeds 33554432 bytes"),
    "many rows": ("select * from generate_series(1, 300000000)", "exceeds 33554432 bytes"),
    "deep parentheses": ("select " + "(" * 30_000 + "1" + ")" * 30_000, "RecursionLimit"),
    "a long sum": ("select " + "+".join(["1"] * 20_000), "SIGSEGV"),
    "a large pattern": ("select regexp_like('a', '" + "(a{1000}){1000}" + "')", "CompiledTooBig"),
}

#: Queries that end at their deadline.
UNENDING = {
    "an array": "select array_agg(value) from generate_series(1, 300000000)",
    "a join of each with each": (
        "select count(*) from generate_series(1, 10000000) a, generate_series(1, 10000000) b"
    ),
    "recursion": (
        "with recursive r as (select 1 as n union all select n + 1 from r) select sum(n) from r"
    ),
}


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def children(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = []
    # A process that has exited has none.
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(one) for one in (thread / "children").read_text().split()]
    return [*found, *(inner for one in found for inner in children(one))]


def ticks(pid: int) -> int:
    """Return the CPU time of a process in ticks."""
    said = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(said[11]) + int(said[12])
