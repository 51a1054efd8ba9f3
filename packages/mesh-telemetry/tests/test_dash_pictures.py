"""Screenshots of the dashboard for its guide, updated by `-m slow`."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from shown_program import (
    Boss,
    Partner,
    browser,
    name_program,
    page_of,
    point_at_call,
    ready,
    show,
    wait_for_quiet,
)

from mesh_core import Actor, configured, endpoint, span, this_host
from mesh_telemetry import Telemetry, TelemetryConfig

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "guides" / "images"
LENGTH_MAX = 150_000
MESHES, GPUS = 300, 8


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

    @endpoint
    def save(self, path: str) -> None:
        print(f"error: cannot write {path}: no space left on device", flush=True)
        raise OSError(f"no space left on device: {path}")


class Loader(Actor):
    """Provides batches."""

    @endpoint
    def batch(self, number: int) -> int:
        with span("read", {"number": number}):
            work(0.002 + random.random() * 0.004)
        return number


class Driver(Actor):
    """Runs rounds of training; the next batch is loaded during a step."""

    @endpoint
    def round(self, number: int, learners: Any, loaders: Any) -> None:
        batches = [loaders.batch.call(number) for _ in range(3)]
        learners.step.call(number, 2.5 / (1 + number / 30)).get()
        for batch in batches:
            batch.get()


def train(steps: int, driver: Any, learners: Any, loaders: Any) -> None:
    for number in range(steps):
        driver.round.call_one(number, learners, loaders).get()
    with suppress(OSError):
        learners.slice(gpus=0).save.call_one("/checkpoints/step-0040").get()


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the program in all pictures."""
    name_program(monkeypatch)


@pytest.mark.slow
def test_pictures_of_a_program_with_4_actors(place: Path) -> None:
    with Telemetry(TelemetryConfig(directory=str(place))) as telemetry, browser() as opened:
        procs = this_host().spawn_procs({"gpus": 2}, name="trainers")
        learners: Any = procs.spawn("learner", Learner)
        loaders: Any = procs.slice(gpus=0).spawn("loader", Loader)
        driver: Any = procs.slice(gpus=1).spawn("driver", Driver)
        serving = telemetry.serve()
        train(41, driver, learners, loaders)
        with page_of(opened, serving, color_scheme="light") as page:
            ready(page, "overview")
            take_small_pictures(page, lambda: train(41, driver, learners, loaders))
            show(page, "overview")
            page.mouse.move(640, 20)
            page.locator("[data-part=endpoints]").get_by_text("step").first.wait_for()
            serving.close()
            page.locator("#lost").filter(has_text="The program has ended").wait_for()
            take(page, "ended")
        wait_for_quiet()
        procs.stop().get()


def take_small_pictures(page: Any, more: Any) -> None:
    more()
    page.locator("[data-part=calls]").get_by_text("learner[0]").first.wait_for()
    page.locator("[data-part=lines]").get_by_text("no space left").first.wait_for()
    more()
    take(page, "overview")
    show(page, "topology")
    page.get_by_role("option").filter(has_text="learner").click()
    page.wait_for_selector("canvas[aria-label='2 ranks: all running']")
    page.locator(".ranks canvas").hover(position={"x": 60, "y": 20})
    page.locator(".ranks .hint").get_by_text("processed").wait_for()
    take(page, "topology")
    page.get_by_role("button", name="Graph").click()
    page.get_by_role("button", name="learner: Learner, 2 ranks").wait_for()
    take(page, "graph")
    show(page, "timeline")
    page.locator(".chips button").nth(3).wait_for()
    more()
    # Four times 41 rounds with 6 calls each, and a call that fails.
    canvas = page.locator(f"canvas[aria-label*='{4 * (41 * 6 + 1)} calls']")
    canvas.wait_for()
    # The latest calls are at the right end.
    canvas.hover(position={"x": 1195, "y": 60})
    page.mouse.wheel(0, -700)
    for _ in range(2):
        canvas.press("ArrowRight")
    canvas.blur()
    point_at_call(page, "calls batch, step: 5 messages")
    take(page, "timeline")
    show(page, "logs")
    page.mouse.move(640, 20)
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


@pytest.mark.slow
def test_pictures_of_a_program_with_2400_actors(place: Path) -> None:
    with Telemetry(TelemetryConfig(directory=str(place))) as telemetry:
        procs = this_host().spawn_procs({"hosts": 2, "gpus": GPUS // 2}, name="trainers")
        shards: Any = [procs.spawn(f"shard-{at}", Learner) for at in range(MESHES)]
        loaders: Any = procs.slice(gpus=0).spawn("loader", Loader)
        driver: Any = procs.slice(hosts=0, gpus=1).spawn("driver", Driver)
        office = this_host().spawn_procs(name="office")
        boss: Any = office.spawn("boss", Boss)
        boss.lose.call_one(procs.slice(hosts=1)).get()
        with configured(deadlock_probe_s=3600):
            pair = this_host().spawn_procs({"side": 2}, name="pair")
        left: Any = pair.slice(side=0).spawn("planner", Partner)
        right: Any = pair.slice(side=1).spawn("evaluator", Partner)
        right.name.call_one().get()
        asking = left.ask.call_one(right, left)
        with telemetry.serve() as serving, browser() as opened:
            for shard in shards[:20]:
                for number in range(5):
                    driver.round.call_one(number, shard, loaders).get()
            with page_of(opened, serving, color_scheme="dark") as page:
                ready(page, "overview")
                take_large_pictures(page)
            wait_for_quiet()
        asking.cancel()
        # The next program is recorded with all processes that still run.
        for one in (pair, office, procs):
            with suppress(Exception):
                one.stop().get(60)


def take_large_pictures(page: Any) -> None:
    page.locator("#failures").get_by_text("ValueError").first.wait_for()
    page.locator("[data-part=endpoints]").get_by_text("step").first.wait_for()
    take(page, "overview-2400")
    show(page, "topology")
    page.get_by_role("option").filter(has_text="300 meshes").click()
    page.get_by_role("option").filter(has_text="shard-3").first.wait_for()
    page.wait_for_selector("canvas[aria-label='4 ranks: 4 failed']")
    take(page, "topology-2400")
    page.get_by_role("button", name="Graph").click()
    page.get_by_role("button", name="Learner (shard-…): 300 meshes, 2,400 ranks").wait_for()
    take(page, "graph-2400")
    show(page, "explorer")
    page.get_by_role("option").filter(has_text="trainers[5]").click()
    page.get_by_role("option").filter(has_text="shard-0[5]").click()
    page.locator("[aria-label=Spans]").get_by_text("forward").first.wait_for()
    take(page, "explorer-2400")
    show(page, "stacks")
    page.locator("[data-part=deadlock]").wait_for()
    page.get_by_label("Waits").get_by_role("button").first.click()
    page.locator("[data-part=stacks]").get_by_text("Partner.").first.wait_for()
    take(page, "stacks-2400")


def take(page: Any, name: str) -> None:
    # The last changes are on the screen after two frames.
    page.evaluate("() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")
    path = IMAGES / f"dash-{name}.png"
    page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < LENGTH_MAX
