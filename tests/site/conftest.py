"""The built website, served on this machine, and pages of a headless browser."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from tools.workspace import ROOT

Open = Callable[[str], Any]

_LIMIT_MS = 30_000


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Do not print requests."""


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of the website in site/."""
    handler = partial(_Handler, directory=str(ROOT / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium in headless mode."""
    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        opened = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture
def open_page(address: str, browser: Any) -> Iterator[Open]:
    """Open a page of the website by its path; it must have no errors and load nothing else."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(_LIMIT_MS)
    problems: list[str] = []

    def check_request(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            problems.append(f"the page loads {request.url}")

    def open_one(path: str) -> Any:
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", check_request)
        page.goto(f"{address}/{path}")
        return page

    yield open_one
    context.close()
    assert problems == []


def show(page: Any, name: str) -> None:
    """Keep a picture of a page in the folder that `MESH_SITE_PICTURES` names, if any."""
    if folder := os.environ.get("MESH_SITE_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder, f"{name}.png")))
