"""The dashboard is responsive with thousands of actors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from shown_program import Boss, Trainer, browser, page_of, ready, show, wait_for_quiet

from mesh_core import this_host
from mesh_telemetry import Telemetry, TelemetryConfig

PROCS = 8
# About the number of elements that fit on a screen, independent of the amount of data.
ELEMENTS_MAX = 2500


def elements(page: Any) -> int:
    count: int = page.evaluate("document.getElementsByTagName('*').length")
    return count


@pytest.mark.parametrize("meshes", [300, pytest.param(1250, marks=pytest.mark.slow)])
def test_the_dashboard_is_responsive_with_thousands_of_actors(place: Path, meshes: int) -> None:
    with Telemetry(TelemetryConfig(directory=str(place))) as telemetry:
        procs = this_host().spawn_procs({"gpus": PROCS}, name="team")
        trainers: Any = [procs.spawn(f"trainer-{at}", Trainer) for at in range(meshes)]
        trainers[-1].step.call(1).get()
        boss: Any = procs.slice(gpus=0).spawn("boss", Boss)
        boss.lose.call_one(procs.slice(gpus=0)).get()
        try:
            with telemetry.serve() as serving, browser() as opened:
                with page_of(opened, serving) as page:
                    ready(page, "overview")
                    text = "document.querySelector('[data-card=Actors] .value').textContent"
                    page.wait_for_function(f"() => {text} === '{PROCS * meshes + 2:,}'")
                    look(page, meshes)
                wait_for_quiet()
        finally:
            # Programs of later tests are recorded with all processes that still run.
            procs.stop().get()


def look(page: Any, meshes: int) -> None:
    show(page, "topology")
    # The program has some other meshes.
    hundreds = f"{meshes:,}"[:-2]
    page.locator("section").get_by_text(re.compile(rf"^{hundreds}\d\d meshes$")).wait_for()
    # Meshes are grouped by class; those that have failed come first.
    options = page.get_by_role("option")
    options.first.filter(has_text="Trainer").filter(has_text="1 failed").wait_for()
    options.nth(1).filter(has_text="mortal").filter(has_text="1 failure").wait_for()
    page.locator("[role=listbox]").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    page.get_by_role("option").filter(has_text=f"trainer-{meshes - 1}").click()
    page.locator("[aria-label=Mesh]").get_by_text("gpus 8: 8 ranks, 8 started").wait_for()
    assert elements(page) < ELEMENTS_MAX
    page.get_by_role("button", name="Graph").click()
    page.get_by_role("button", name="team: 8 processes").wait_for()
    group = f"Trainer (trainer-…): {meshes:,} meshes, {PROCS * meshes:,} ranks"
    page.get_by_role("button", name=group).wait_for()
    page.get_by_role("button", name="mortal: Trainer, 1 rank, ✕ failed").wait_for()
    assert elements(page) < ELEMENTS_MAX
    show(page, "explorer")
    page.get_by_role("option").filter(has_text="team[3]").click()
    page.get_by_role("option").filter(has_text="trainer-0[3]").wait_for()
    page.locator("[role=listbox]").focus()
    page.keyboard.press("End")
    page.get_by_role("option").filter(has_text="team[7]").wait_for()
    page.keyboard.press("Home")
    assert elements(page) < ELEMENTS_MAX
    page.get_by_label("Filter actors").fill("trainer-277")
    page.get_by_text("8 actors", exact=True).wait_for()
    for name in ("timeline", "logs", "sql", "stacks", "overview"):
        show(page, name)
        assert elements(page) < ELEMENTS_MAX
