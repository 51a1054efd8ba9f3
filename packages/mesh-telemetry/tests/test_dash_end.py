"""The dashboard keeps the last state on screen after the program has ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shown_program import browser, page_of, ready, show
from top_program import program

from mesh_telemetry._serve.dashboard_url import dashboard_url
from mesh_telemetry._serve.program_files import served_program

TEAM = "canvas[aria-label='2 ranks: all running']"


def test_the_last_state_stays_visible_after_the_program_exits(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with program(place) as running, browser() as opened:
        served = served_program(running.pid)
        address: Any = SimpleNamespace(dashboard_url=dashboard_url(served.url, served.token))
        with page_of(opened, address) as page, page_of(opened, address) as other:
            ready(page, "overview")
            page.locator("[data-card=Actors] .value").filter(has_text="3").wait_for()
            show(page, "topology")
            page.get_by_role("option").filter(has_text="trainers").click()
            page.locator(TEAM).wait_for()
            # The server sends no values to this page without a request.
            show(other, "sql")
            assert page.locator("#lost").is_hidden()
            running.end()
            for one in (page, other):
                one.locator("#lost").filter(has_text="The program has ended").wait_for()
            assert page.locator(TEAM).is_visible()
            assert other.get_by_label("SQL", exact=True).is_visible()
            # A page that was open before shows its last state again.
            show(page, "overview")
            page.locator("[data-card=Actors] .value").filter(has_text="3").wait_for()
            # Other pages have no state, and show a message about it.
            page.evaluate("location.hash = '#/stacks'")
            page.get_by_text("There is no last state of this page").wait_for()
            assert page.locator("#lost").is_visible()
