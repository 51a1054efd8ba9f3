"""The result of a query in a notebook."""

from __future__ import annotations

import pyarrow as pa

from mesh_telemetry import Coverage, HostFailure, QueryResult


def test_a_notebook_shows_the_first_rows_and_missing_hosts() -> None:
    failed = (HostFailure("n2", "it did not reply"),)
    coverage = Coverage(("n1", "n2"), ("n1",), failed, ())
    table = pa.table({"mesh": ["<i>"] * 60, "rank": pa.array([None, *range(59)], pa.int64())})
    html = QueryResult(table, coverage)._repr_html_()
    assert html.startswith("<div>60 rows, without those of n2</div>")
    assert html.count("<tr>") == 51
    assert "<tr><th>mesh</th><th>rank</th></tr><tr><td>&lt;i&gt;</td><td></td></tr>" in html
    assert "10 more rows" in html
