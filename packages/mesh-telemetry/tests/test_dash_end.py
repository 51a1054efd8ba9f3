"""The dashboard keeps the last state on screen after the program has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from shown_program import Trainer, browser, page_of, ready, show, wait_for_quiet

from mesh_core import this_host
from mesh_telemetry import Telemetry, TelemetryConfig


def test_the_last_state_stays_with_a_notice(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Telemetry(TelemetryConfig(directory=str(place))) as telemetry, browser() as opened:
        procs = this_host().spawn_procs({"gpus": 2}, name="team")
        procs.spawn("trainers", Trainer).step.call(1).get()
        serving = telemetry.serve()
        with page_of(opened, serving) as page:
            ready(page, "overview")
            page.locator("[data-card=Actors] .value").filter(has_text="2").wait_for()
            show(page, "topology")
            page.locator("canvas[aria-label='2 ranks: all running']").wait_for()
            assert page.locator("#lost").is_hidden()
            serving.close()
            notice = page.locator("#lost")
            notice.filter(has_text="The program has ended").wait_for()
            assert page.locator("canvas[aria-label='2 ranks: all running']").is_visible()
            # A page that was open before shows its last state again.
            show(page, "overview")
            page.locator("[data-card=Actors] .value").filter(has_text="2").wait_for()
            # Other pages have no state, and say so.
            page.evaluate("location.hash = '#/stacks'")
            page.get_by_text("There is no last state of this page").wait_for()
            assert notice.is_visible()
        wait_for_quiet()
        procs.stop().get()
