"""The ranks of a region as text, for printing a mesh."""

from __future__ import annotations

from itertools import product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._core import Region

__all__ = ["rank_table"]


def rank_table(region: Region) -> str:
    """Format the ranks of a region: the last dimension as columns, the one before as rows.

    Each combination of coordinates in the other dimensions has its own table below its coordinates.
    """
    labels, sizes, ranks = region.labels, region.sizes, region.ranks()
    if not labels:
        return str(ranks[0])
    columns = sizes[-1]
    rows = sizes[-2] if len(sizes) > 1 else 1
    tables = []
    outer = product(*map(range, sizes[:-2]))
    for block, coordinates in enumerate(outer):
        first = block * rows * columns
        cells = [ranks[first + row * columns : first + (row + 1) * columns] for row in range(rows)]
        title = ", ".join(f"{label}={at}" for label, at in zip(labels, coordinates, strict=False))
        table = _format(labels[-2:], cells)
        tables.append(f"{title}\n{table}" if title else table)
    return "\n\n".join(tables)


def _format(labels: Sequence[str], cells: Sequence[Sequence[int]]) -> str:
    heads = list(map(str, range(len(cells)))) if len(labels) > 1 else [""]
    lines = [["\\".join(labels), *map(str, range(len(cells[0])))]]
    lines += [[head, *map(str, row)] for head, row in zip(heads, cells, strict=True)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0])]
            + [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
        )
        for line in lines
    )
