"""Screenshots of the dashboard for its guide, updated by `-m slow`."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from shown_program import Boss, Partner, browser, page_of, ready, show, wait_for_quiet

from mesh_core import Actor, configured, endpoint, span, this_host
from mesh_telemetry import Telemetry, TelemetryConfig

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "guides" / "images"
LENGTH_MAX = 150_000


def work(seconds: float) -> None:
    """Take time, as work does."""
    threading.Event().wait(seconds)


class Learner(Actor):
    """Takes steps of different lengths."""

    @endpoint
    def step(self, number: int, loss: float) -> None:
        with span("step", {"number": number}):
            with span("forward"):
                work(0.004 + random.random() * 0.01)
            with span("backward"):
                work(0.006 + random.random() * 0.012)
        if number % 10 == 0:
            print(f"step {number}: loss {loss:.4f}", flush=True)
        if number % 40 == 0:
            print(f"step {number}: warning: the gradient is large", flush=True)


class Loader(Actor):
    """Provides batches."""

    @endpoint
    def batch(self, number: int) -> int:
        with span("read", {"number": number}):
            work(random.random() * 0.004)
        return number


def train(steps: int, learners: Any, loaders: Any) -> None:
    for number in range(steps):
        loaders.batch.call(number).get()
        learners.step.call(number, 2.5 / (1 + number / 30)).get()


@pytest.mark.slow
def test_pictures_of_all_pages(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    IMAGES.mkdir(exist_ok=True)
    with Telemetry(TelemetryConfig(directory=str(place))) as telemetry:
        procs = this_host().spawn_procs({"hosts": 2, "gpus": 4}, name="trainers")
        learners: Any = procs.spawn("learner", Learner)
        loaders: Any = procs.slice(gpus=0).spawn("loader", Loader)
        boss: Any = this_host().spawn_procs(name="office").spawn("boss", Boss)
        with configured(deadlock_probe_s=3600):
            pair = this_host().spawn_procs({"side": 2}, name="pair")
        left: Any = pair.slice(side=0).spawn("planner", Partner)
        right: Any = pair.slice(side=1).spawn("evaluator", Partner)
        right.name.call_one().get()
        asking = left.ask.call_one(right, left)
        train(60, learners, loaders)
        boss.lose.call_one(procs).get()
        train(60, learners, loaders)
        with telemetry.serve() as serving, browser() as opened:
            with page_of(opened, serving, color_scheme="light") as page:
                ready(page, "overview")
                take_pictures(page, lambda: train(10, learners, loaders))
            wait_for_quiet()
        asking.cancel()


def take_pictures(page: Any, more: Any) -> None:
    more()
    page.locator("#failures").get_by_text("ValueError").first.wait_for()
    take(page, "overview")
    show(page, "topology")
    page.get_by_role("option").filter(has_text="mortal").click()
    page.wait_for_selector("canvas[aria-label='8 ranks: 8 failed']")
    take(page, "topology")
    page.get_by_role("button", name="Graph").click()
    page.get_by_role("button", name="learner: Learner, 8 ranks").wait_for()
    take(page, "graph")
    show(page, "explorer")
    page.get_by_role("option").filter(has_text="trainers[5]").click()
    page.get_by_role("option").filter(has_text="learner[5]").click()
    page.locator("[aria-label=Spans]").get_by_text("forward").first.wait_for()
    take(page, "explorer")
    show(page, "timeline")
    page.locator(".chips button").nth(7).wait_for()
    for _ in range(5):
        page.get_by_role("button", name="Zoom in").click()
    take(page, "timeline")
    show(page, "logs")
    more()
    page.get_by_label("Severity").select_option("warning")
    page.wait_for_function("() => location.hash.includes('severity')")
    page.locator("[aria-label=Lines]").get_by_text("warning").first.wait_for()
    # A picture of text needs more space, so this one shows fewer lines.
    page.set_viewport_size({"width": 1280, "height": 480})
    take(page, "logs")
    page.set_viewport_size({"width": 1280, "height": 800})
    show(page, "sql")
    page.get_by_label("SQL", exact=True).fill(
        "select a.display_name, s.name, count(*) as spans,\n"
        "  avg(e.timestamp_us - s.timestamp_us) / 1000 as mean_ms\n"
        "from spans s\n"
        "join span_events e on e.id = s.id and e.event_type = 'close'\n"
        "join actors a on a.id = s.actor_id\n"
        "group by a.display_name, s.name order by mean_ms desc"
    )
    page.keyboard.press("Control+Enter")
    page.locator("[data-part=rows]").wait_for()
    take(page, "sql")
    show(page, "stacks")
    page.locator("[data-part=deadlock]").wait_for()
    page.get_by_label("Waits").get_by_role("button").first.click()
    page.locator("[data-part=stacks]").get_by_text("Partner.").first.wait_for()
    take(page, "stacks")


def take(page: Any, name: str) -> None:
    # The last changes are on the screen after two frames.
    page.evaluate("() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")
    path = IMAGES / f"dash-{name}.png"
    page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < LENGTH_MAX
