"""The comparison page shows what the ledger of its last run contains."""

import json
from pathlib import Path

import pytest

from bench.comparison import page, picture
from tools.workspace import ROOT

DOCS = ROOT / "docs"


def test_the_page_and_its_picture_match_the_ledger(tmp_path: Path) -> None:
    page.write(json.loads((DOCS / "comparison.json").read_text("utf-8")), tmp_path)
    for name in ("comparison.md", "comparison.svg"):
        written = (tmp_path / name).read_text("utf-8")
        assert written == (DOCS / name).read_text("utf-8"), "run python -m bench.comparison --page"


def test_losses_are_on_the_page(tmp_path: Path) -> None:
    lines = [
        {"driver": name, "workload": "latency.sync", "placement": "plain", "metric": "p50",
         "value": value, "unit": "us"}
        for name, value in (("mesh", 50.0), ("ray", 25.0))
    ]  # fmt: skip
    about = {"processor": "p", "cores": 2, "memory_gib": 4, "kernel": "6", "python": "3.11"}
    failed = {"driver": "dask", "workload": "latency.sync", "stderr": "NotOfferedError: no"}
    ledger = {
        "date": "2026-01-31", "machine": about, "versions": {"Mesh": "0.1"}, "rounds": 1,
        "failures": {}, "errors": [failed], "lines": lines,
    }  # fmt: skip
    page.write(ledger, tmp_path)
    (row,) = [
        line
        for line in (tmp_path / "comparison.md").read_text("utf-8").splitlines()
        if line.startswith("| sync call_one, p50 | all cores")
    ]
    assert "2x **behind** (Ray)" in row
    assert "| not offered |" in row


@pytest.mark.parametrize("ratios", [{"Mesh": 1.0, "Ray": 1e4}, {"Mesh": 1.0, "Ray": 1e-3}])
def test_every_ratio_is_inside_the_picture(ratios: dict[str, float]) -> None:
    drawn = picture.chart([picture.Line("call", ratios)], list(ratios), "Ratios")
    places = [float(part.partition('"')[0]) for part in drawn.split('cx="')[1:]]
    assert all(0 < place < 760 for place in places)
