"""The heat map of training steps: in SQL, on the dashboard and in `mesh top`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S
from recorded_program import config
from shown_program import browser, name_program, page_of, ready, show
from textual.widgets import Static
from top_pilot import top
from training_actors import SIZE, SLOW_RANK, STARVED_RANK, STEPS, Trainer

from mesh_core import this_host
from mesh_telemetry import SlowRank, Telemetry
from mesh_telemetry._serve.serving import Serving
from mesh_telemetry._steps.causes import with_causes
from mesh_telemetry._steps.heat_map import heat_map, trained_meshes

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "guides" / "images"
LENGTH_MAX = 150_000
NAMES = (
    "proc", "pid", "host", "rank", "step", "duration_us", "compute_us", "input_us",
    "communication_us",
)  # fmt: skip


def step(rank: int, number: int, compute_us: int, **changed: object) -> dict[str, Any]:
    """A row of `steps`: the rest of 10 ms is communication."""
    values = (f"0.{rank + 1}", rank, "node", rank, number, 10_000, compute_us, 0, 0)
    return {**dict(zip(NAMES, values, strict=True)), "began_us": number, **changed}


class Table:
    """Replies to the queries of a heat map from rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __call__(self, sql: str, *values: object) -> list[dict[str, Any]]:
        if "group by mesh" in sql:
            return [{"mesh": "train"}]
        if "group by rank" not in sql:
            return [row for row in self.rows if row["step"] > values[1]]
        latest: dict[tuple[object, ...], dict[str, Any]] = {}
        for row in self.rows:
            key = row["rank"], row["proc"], row["pid"]
            begun = max(row["began_us"], latest.get(key, row).get("latest_us", 0))
            last = max(row["step"], latest.get(key, row).get("last", 0))
            latest[key] = {**row, "last": last, "latest_us": begun}
        return list(latest.values())


def test_only_the_steps_of_the_slow_rank_are_delayed() -> None:
    rows = [
        step(rank, number, 6000 if rank == 1 else 5000) for number in range(9) for rank in range(4)
    ]
    found = heat_map(Table(rows), "train")
    assert found.steps == list(range(9))
    assert [one.delay for one in found.ranks] == [0.0, pytest.approx(0.1), 0.0, 0.0]
    assert found.ranks[1].delays == [pytest.approx(0.1)] * 9


def test_ranks_are_compared_by_step_number_if_one_is_ahead() -> None:
    rows = [step(rank, number, 5000) for rank in range(3) for number in range(9 + (rank == 0))]
    found = heat_map(Table(rows), "train")
    assert found.steps == list(range(10))
    assert found.ranks[1].delays == [0.0] * 9 + [None]


def test_a_replaced_rank_is_aligned_at_its_latest_step() -> None:
    rows = [step(rank, number, 5000) for rank in range(3) for number in range(200)]
    gone = [row for row in rows if row["rank"] == 2 and row["step"] < 150]
    new = [step(2, number, 7000, proc="0.9", pid=99, began_us=150 + number) for number in range(50)]
    found = heat_map(Table([row for row in rows if row["rank"] != 2] + gone + new), "train")
    assert found.steps == list(range(80, 200))
    last = found.ranks[2]
    assert (last.proc, last.delays.count(None)) == ("0.9", 70)
    assert last.delays[-1] == pytest.approx(0.2)


def test_the_heat_map_is_empty_without_steps() -> None:
    assert heat_map(Table([]), "train") == ("train", [], [])


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    """A program of which one rank computes more, and one waits for its data."""
    with Telemetry(config(place)) as telemetry:
        procs = this_host().spawn_procs({"gpus": SIZE}, name="train")
        procs.spawn("trainers", Trainer).train.call().get(timeout=LIMIT_S)
        yield telemetry
        procs.stop().get(timeout=LIMIT_S)


@pytest.fixture
def serving(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """The program, served."""
    name_program(monkeypatch)
    with telemetry.serve() as serving:
        yield serving


def test_the_causes_of_slow_ranks_are_reported(telemetry: Telemetry) -> None:
    def rows(sql: str, *values: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = telemetry.query(sql, values).table.to_pylist()
        return found

    assert trained_meshes(rows) == ["train"]
    found = heat_map(rows, "train")
    assert found.steps == list(range(STEPS))
    slow = [one for one in found.ranks if one.delay > 0.03]
    assert [one.rank for one in slow] == [SLOW_RANK, STARVED_RANK]
    assert [one.delay for one in slow] == pytest.approx([0.3, 0.2])
    named = with_causes(
        [SlowRank(one.rank, 0.2, "train", one.proc, one.pid, one.host, "0") for one in slow], rows
    )
    assert [one.cause for one in named] == ["computing", "input"]
    assert str(named[1]).endswith("between collectives, for its data loader")


def test_the_dashboard_shows_the_slow_ranks(serving: Serving) -> None:
    with browser() as opened, page_of(opened, serving, color_scheme="light") as page:
        ready(page, "overview")
        show(page, "steps")
        rows = page.get_by_role("table", name="Slowest ranks").locator("tbody tr")
        assert rows.nth(0).locator("td").nth(0).inner_text() == str(SLOW_RANK)
        assert rows.nth(0).inner_text().split("\t")[3:] == [
            "+30.0%", "10.0 ms", "8.00 ms", "1.00 ms", "1.00 ms", "computing"
        ]  # fmt: skip
        assert rows.nth(1).locator("td").nth(0).inner_text() == str(STARVED_RANK)
        name = page.locator("[data-part=heat] canvas").get_attribute("aria-label")
        assert name == f"Heat map of {SIZE} ranks; slow: {SLOW_RANK}, {STARVED_RANK}"
        page.locator("[data-part=heat] canvas").hover(position={"x": 600, "y": 60})
        page.get_by_text(f"rank {SLOW_RANK} on").wait_for()


async def test_top_shows_the_slow_ranks(serving: Serving) -> None:
    async with top(os.getpid(), size=(140, 24)) as person:
        await person.until(person.titles)
        await person.press("t")

        def lines() -> list[str]:
            return str(person.app.screen.query_one("#steps-map", Static).content).splitlines()

        await person.until(lambda: len(lines()) == SIZE)
        assert lines()[SLOW_RANK].split()[1] == str(SLOW_RANK)
        assert "+30.0% computing" in lines()[SLOW_RANK]
        assert "+0.0%" in lines()[0]
        await person.press("o")
        await person.until(lambda: lines()[0].split()[1] == str(SLOW_RANK))
        await person.press("escape")
        assert person.titles()


@pytest.mark.slow
def test_a_picture_of_the_dashboard(serving: Serving) -> None:
    path = IMAGES / "dash-steps.png"
    with browser() as opened, page_of(opened, serving, color_scheme="light") as page:
        page.set_viewport_size({"width": 1280, "height": 560})
        ready(page, "overview")
        show(page, "steps")
        page.get_by_role("table", name="Slowest ranks").wait_for()
        page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < LENGTH_MAX
