"""Formats verdicts as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.results import Verdict

_HEADER = ("", "cores", "ours", "peer", "floor", "vs peer", "vs floor", "goal", "")


def table(verdicts: Iterable[Verdict], procs: int) -> str:
    """Return a table with one verdict per row; `procs` is the size of the meshes in it."""
    cells = [_HEADER, *(_cells(verdict, procs) for verdict in verdicts)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADER))]
    rule = "  ".join("-" * width for width in widths)
    lines = [_line(line, widths) for line in cells]
    return "\n".join([lines[0], rule, *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    # Figures and ratios are right-aligned, so that they can be compared within a column.
    return "  ".join(
        cell.rjust(width) if 2 <= i <= 6 else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def _cells(verdict: Verdict, procs: int) -> tuple[str, ...]:
    row = verdict.row
    return (
        row.title.format(procs=procs),
        {"pinned": "one", "plain": "all"}[verdict.placement],
        figure(verdict.ours, row.unit),
        figure(verdict.peer, row.unit),
        figure(verdict.floor, row.unit),
        _ratio(verdict.vs_peer),
        _ratio(verdict.vs_floor),
        row.goal(),
        verdict.word(),
    )


def figure(value: float | None, unit: str) -> str:
    """Return a value with its unit, or a dash."""
    if value is None:
        return "-"
    if unit == "us" and value >= 10_000:
        value, unit = value / 1000, "ms"
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}x"
