"""The time until the dashboard of a program with many actors shows its first content."""

from __future__ import annotations

import shutil
import statistics
import time
from typing import TYPE_CHECKING, Any

from bench.record import Recorder
from bench.scale import QUICK, Scale

if TYPE_CHECKING:
    from bench.drivers.mesh_telemetry import MeshTelemetryDriver

_MESHES, _RANKS = 1250, 8
_BROWSER = "chromium"
_LIMIT_MS = 30_000
# From the start of the navigation until the number of actors is visible.
_PAINTED = """
() => new Promise(done => {
  const seen = () => requestAnimationFrame(() => setTimeout(() => done(performance.now())));
  if (document.body.dataset.ready) return seen();
  new MutationObserver((_, it) => {
    if (document.body.dataset.ready) { it.disconnect(); seen(); }
  }).observe(document.body, {attributes: true});
})
"""


def first(driver: MeshTelemetryDriver, scale: Scale, record: Recorder) -> None:
    """Open the overview of a program with ten thousand actors in eight processes."""
    reason = _missing(driver)
    if reason:
        record.left_out("first paint of the dashboard", reason)
        return
    from playwright.sync_api import sync_playwright

    driver.start_recorded(_RANKS)
    meshes = 10 if scale is QUICK else _MESHES
    started = time.perf_counter()
    driver.spawn_more(meshes)
    wanted = (meshes + 1) * _RANKS
    until = time.monotonic() + _LIMIT_MS / 1e3
    while (seen := driver.rows("select count(*) as n from actors")[0]["n"]) < wanted:
        assert time.monotonic() < until, f"{seen} of {wanted} actors are there"
    record.value("spawned_s", time.perf_counter() - started, "s", actors=wanted)
    with driver.telemetry.serve() as serving, sync_playwright() as playwright:
        path = shutil.which(_BROWSER)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        times = [
            _paint_s(browser, serving.dashboard_url) for _ in range(1 if scale is QUICK else 5)
        ]
        browser.close()
    record.value("paint", statistics.median(times), "s", n=len(times), first=times[0])


def _paint_s(browser: Any, url: str) -> float:
    # A new context has an empty cache.
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(_LIMIT_MS)
    page.goto(url, wait_until="commit")
    page.wait_for_function("() => document.body !== null")
    painted: float = page.evaluate(_PAINTED)
    context.close()
    return painted / 1e3


def _missing(driver: MeshTelemetryDriver) -> str:
    """Return the reason why this cannot be measured here; empty if it can."""
    try:
        import playwright.sync_api as playwright
    except ImportError:
        return "playwright is not installed: pip install playwright"
    assert playwright is not None, "it was imported"
    if shutil.which(_BROWSER) is None:
        return f"there is no {_BROWSER} on the path: install Debian's package {_BROWSER}"
    return "" if driver.has_dashboard else "this release has no dashboard"
