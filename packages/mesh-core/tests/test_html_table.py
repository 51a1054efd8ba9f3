"""Meshes and values as tables in notebooks."""

from __future__ import annotations

import threading

from mesh_core import Actor, Extent, ValueMesh, configured, endpoint, this_host

LIMIT_S = 60.0


def cells(html: str) -> list[list[str]]:
    """Return the texts of the rows."""
    table = html.partition("<table>")[2].partition("</table>")[0]
    rows = table.replace("<th>", "<td>").replace("</th>", "</td>").split("<tr>")[1:]
    return [
        [cell.removesuffix("</tr>") for cell in row.replace("</td>", "").split("<td>")[1:]]
        for row in rows
    ]


def test_the_last_dimension_of_a_mesh_is_shown_as_columns() -> None:
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


def test_values_are_escaped_and_truncated() -> None:
    values = ValueMesh(Extent(["x"], [2]), ["<b>", "y" * 1000])
    (_, (first, second)) = cells(values._repr_html_())
    assert first == "&#x27;&lt;b&gt;&#x27;"
    assert second.endswith("…")
    assert len(second) < 100


def test_large_meshes_are_truncated() -> None:
    values = ValueMesh(Extent(["hosts", "gpus"], [100, 100]), range(10_000))
    html = values._repr_html_()
    assert len(cells(html)) == 33
    assert "68 more rows and 84 more columns" in html


class Worker(Actor):
    """Replies, fails, or does neither."""

    @endpoint
    def double(self, n: int) -> int:
        return 2 * n

    @endpoint
    def fail(self) -> None:
        raise ValueError("<no>")

    @endpoint
    def wait(self) -> None:
        threading.Event().wait()


def test_a_future_shows_its_endpoint_its_state_and_its_value() -> None:
    procs = this_host().spawn_procs({"a": 2})
    workers = procs.spawn("workers", Worker)
    values = workers.double.call(4)
    values.get(LIMIT_S)
    assert repr(values) == "<GatherFuture of 'double': done>"
    assert "<th>a=0</th><th>a=1</th>" in values._repr_html_()
    failed = workers.slice(a=0).fail.call_one()
    assert failed.exception(LIMIT_S) is not None
    assert repr(failed) == "<CallFuture of 'fail': failed with ActorError[ValueError]>"
    assert "&lt;no&gt;" in failed._repr_html_()
    pending = workers.slice(a=1).wait.call_one()
    assert repr(pending) == "<CallFuture of 'wait': pending>"
    assert "get() waits" in pending._repr_html_()
    with configured(stop_grace_s=0.1):
        procs.stop().get(LIMIT_S)
