"""The guide documents every table."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh_telemetry._rows.schemas import LIVE_TABLES, TABLE_DOCS

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "telemetry.md"


def section(table: str) -> str:
    """Return the expected section of the guide about a table."""
    doc = TABLE_DOCS[table]
    live = " Live." if table in LIVE_TABLES else ""
    lines = [f"### `{table}`", "", f"{doc.text}{live}", "", "| column | type | what |"]
    lines += ["| --- | --- | --- |"]
    for column in doc.columns:
        kind = f"{column.type}, null" if column.is_nullable else f"{column.type}"
        lines.append(f"| `{column.name}` | {kind} | {column.text} |")
    return "\n".join(lines)


@pytest.mark.parametrize("table", sorted(TABLE_DOCS))
def test_the_guide_has_the_columns_of_every_table(table: str) -> None:
    assert section(table) in GUIDE.read_text(encoding="utf-8")


def test_the_guide_has_no_other_tables() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    headings = [line[5:-1] for line in text.splitlines() if line.startswith("### `")]
    assert headings == list(TABLE_DOCS)
