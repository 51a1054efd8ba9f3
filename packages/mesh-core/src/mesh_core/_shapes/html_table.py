"""Tables for notebooks."""

from __future__ import annotations

from html import escape
from itertools import product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mesh_core._core import Region

__all__ = ["html_table", "mesh_table"]

_ROWS_MAX, _COLUMNS_MAX, _TEXT_LEN_MAX = 32, 16, 60
_MORE = "&hellip;"


def mesh_table(title: str, region: Region, cell: Callable[[int], str]) -> str:
    """Return HTML with a cell for each member: the last dimension as columns, the others as rows.

    Args:
        title: The text above the table.
        region: The members.
        cell: Returns the text of a member by its index.
    """
    labels, sizes = region.labels, region.sizes
    columns = sizes[-1] if sizes else 1
    rows = len(region) // columns if columns else 0
    shown = min(columns, _COLUMNS_MAX)
    heads = [*labels[:-1], *(f"{labels[-1]}={at}" for at in range(shown) if labels)]
    lines = []
    numbers = range(min(rows, _ROWS_MAX))
    for row, coordinates in zip(numbers, product(*map(range, sizes[:-1])), strict=False):
        cells = [_cut(cell(row * columns + at)) for at in range(shown)]
        lines.append([*map(str, coordinates), *cells])
    return html_table(title, heads, lines, rows - len(lines), columns - shown)


def html_table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    more_rows: int = 0,
    more_columns: int = 0,
) -> str:
    """Return HTML with a line of heads and lines of cells, all of them plain text.

    Args:
        title: The text above the table.
        heads: The heads of the columns; may be empty.
        rows: The texts of the cells.
        more_rows: The number of rows that are left out.
        more_columns: The number of columns that are left out.
    """
    more = [_MORE] if more_columns else []
    body = [_line("td", [*map(escape, row), *more]) for row in rows]
    head = [_line("th", [*map(escape, heads), *more])] if heads else []
    omitted = ((more_rows, "rows"), (more_columns, "columns"))
    left = [f"{count} more {what}" for count, what in omitted if count]
    note = f"<div>{' and '.join(left)}</div>" if left else ""
    return f"<div>{escape(title)}</div><table>{''.join([*head, *body])}</table>{note}"


def _line(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_LEN_MAX else f"{text[: _TEXT_LEN_MAX - 1]}…"
