"""Meshes and values as tables in notebooks."""

from __future__ import annotations

from mesh_core import Extent, ValueMesh, this_host


def cells(html: str) -> list[list[str]]:
    """Return the texts of the rows."""
    table = html.partition("<table>")[2].partition("</table>")[0]
    rows = table.replace("<th>", "<td>").replace("</th>", "</td>").split("<tr>")[1:]
    return [
        [cell.removesuffix("</tr>") for cell in row.replace("</td>", "").split("<td>")[1:]]
        for row in rows
    ]


def test_the_last_dimension_of_a_mesh_has_the_columns() -> None:
    values = ValueMesh(Extent(["hosts", "gpus"], [2, 3]), range(6))
    html = values._repr_html_()
    assert cells(html) == [
        ["hosts", "gpus=0", "gpus=1", "gpus=2"],
        ["0", "0", "1", "2"],
        ["1", "3", "4", "5"],
    ]
    assert "hosts: 2, gpus: 3" in html


def test_a_slice_shows_its_ranks() -> None:
    with this_host().spawn_procs({"a": 2, "b": 2}) as procs:
        assert cells(procs.slice(a=1)._repr_html_()) == [["b=0", "b=1"], ["2", "3"]]
        assert cells(procs.slice(a=1, b=0)._repr_html_()) == [["2"]]


def test_values_are_not_interpreted_and_are_cut() -> None:
    values = ValueMesh(Extent(["x"], [2]), ["<b>", "y" * 1000])
    (_, (first, second)) = cells(values._repr_html_())
    assert first == "&#x27;&lt;b&gt;&#x27;"
    assert second.endswith("…")
    assert len(second) < 100


def test_large_meshes_are_cut() -> None:
    values = ValueMesh(Extent(["hosts", "gpus"], [100, 100]), range(10_000))
    html = values._repr_html_()
    assert len(cells(html)) == 33
    assert "68 more rows and 84 more columns" in html
