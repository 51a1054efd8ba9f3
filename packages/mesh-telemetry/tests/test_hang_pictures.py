"""The dashboard and `mesh top` show a hang; `-m slow` updates the pictures of the guide."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collective_actors import SIZE, Trainer, make_fifos, release
from recorded_actors import LIMIT_S
from recorded_program import config
from shown_program import browser, name_program, page_of, ready
from textual.widgets import Static
from top_pilot import Person, top

from mesh_core import this_host
from mesh_telemetry import Telemetry
from mesh_telemetry._serve.serving import Serving

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "guides" / "images"
LENGTH_MAX = 150_000


@pytest.fixture
def serving(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """A served program whose rank 2 does not join the sixth collective."""
    name_program(monkeypatch)
    make_fifos(str(tmp_path))
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        procs = this_host().spawn_procs({"gpus": SIZE}, name="train")
        training = procs.spawn("trainers", Trainer, str(tmp_path)).train.call(5, 2)
        yield serving
        release(str(tmp_path))
        training.get(LIMIT_S)
        procs.stop().get(LIMIT_S)


def show_hang(page: Any) -> None:
    """Wait until the overview shows the hang."""
    ready(page, "overview")
    panel = page.locator("[data-part=hangs]")
    panel.get_by_text("train[2]").wait_for()
    panel.get_by_text("is blocked, and has not called it").wait_for()
    panel.get_by_text("all_reduce #5").wait_for()


async def wait_for_hang(person: Person) -> None:
    """Wait until `mesh top` names the rank."""

    def status() -> str:
        return str(person.app.query_one("#status", Static).render())

    await person.until(lambda: "rank 2 of 'train' is blocked" in status())
    assert "in Trainer.load; others wait in all_reduce #5" in status()
    assert "1 hang" in str(person.app.query_one("#head", Static).render())


def test_the_overview_shows_the_rank_that_hangs(serving: Serving) -> None:
    with browser() as opened, page_of(opened, serving, color_scheme="light") as page:
        show_hang(page)


async def test_top_shows_the_rank_that_hangs(serving: Serving) -> None:
    async with top(os.getpid(), size=(140, 24)) as person:
        await wait_for_hang(person)


@pytest.mark.slow
def test_a_picture_of_the_overview(serving: Serving) -> None:
    path = IMAGES / "dash-hang.png"
    with browser() as opened, page_of(opened, serving, color_scheme="light") as page:
        page.set_viewport_size({"width": 1280, "height": 480})
        show_hang(page)
        page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < LENGTH_MAX


@pytest.mark.slow
async def test_a_picture_of_top(serving: Serving) -> None:
    path = IMAGES / "top-hang.svg"
    async with top(os.getpid(), size=(140, 16)) as person:
        await wait_for_hang(person)
        path.write_text(person.app.export_screenshot(title="mesh top"))
    assert path.stat().st_size < LENGTH_MAX
