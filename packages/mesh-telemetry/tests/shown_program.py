"""A program for the dashboard, and a browser to view it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from mesh_core import Actor, MeshFailure, ProcMesh, configured, endpoint, span, this_host
from mesh_core.testing import wait_until
from mesh_telemetry._serve.serving import Serving

LIMIT_MS = 60_000
#: A name that would be an element, and run, if it were inserted into the page as HTML.
EVIL = "<img src=x onerror=document.title='taken'>"


class Trainer(Actor):
    """Produces data for the pages."""

    @endpoint
    def step(self, number: int) -> None:
        with span("step", {"number": number}), span("inner"):
            pass

    @endpoint
    def shout(self, text: str) -> None:
        print(text, flush=True)

    @endpoint
    def refuse(self, reason: str) -> None:
        print(f"error: {reason}", flush=True)
        raise PermissionError(reason)

    @endpoint
    def fail(self) -> None:
        try:
            raise KeyError("the batch is gone")
        except KeyError as error:
            raise ValueError("no gradient") from error


class Partner(Actor):
    """Waits for another actor that waits for it."""

    @endpoint
    def ask(self, other: Partner, me: Partner) -> str:
        return other.answer.call_one(me).get()

    @endpoint
    def answer(self, asker: Partner) -> str:
        return asker.name.call_one().get()

    @endpoint
    def name(self) -> str:
        return ""

    @endpoint
    def relay(self, other: Partner) -> str:
        return other.name.call_one().get()


class Boss(Actor):
    """Owns actors that fail, and continues without them."""

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True

    @endpoint
    def lose(self, procs: ProcMesh) -> None:
        self.mortal = procs.spawn("mortal", Trainer)
        self.mortal.fail.broadcast()


class ShownProgram:
    """Named meshes, one of which has failed, and two actors in a deadlock."""

    def __init__(self) -> None:
        self.procs = this_host().spawn_procs({"gpus": 4}, name="team")
        self.trainers: Any = self.procs.spawn("trainers", Trainer)
        self.evil: Any = self.procs.spawn(EVIL, Trainer)
        for number in range(5):
            self.trainers.step.call(number).get()
        self.evil.shout.call(EVIL).get()
        self._boss_procs = this_host().spawn_procs(name="office")
        self._boss: Any = self._boss_procs.spawn("boss", Boss)
        self._boss.lose.call_one(self.procs).get()
        # The deadlock must persist, but it would otherwise be detected and broken.
        with configured(deadlock_probe_s=3600):
            self._pair = this_host().spawn_procs({"side": 2}, name="pair")
        left: Any = self._pair.slice(side=0).spawn("left", Partner)
        right: Any = self._pair.slice(side=1).spawn("right", Partner)
        left.name.call_one().get()
        right.name.call_one().get()
        left.relay.call_one(right).get()
        self._asking = left.ask.call_one(right, left)

    def close(self) -> None:
        """Stop all processes."""
        self._asking.cancel()
        for procs in (self._pair, self._boss_procs, self.procs):
            with suppress(Exception):
                procs.stop().get(60)


def name_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the program the command line of a user's program instead of that of the tests."""
    for module in ("_telemetry_client", "_hosts.coordinator"):
        monkeypatch.setattr(f"mesh_telemetry.{module}.program_line", lambda: "python train.py")


@contextmanager
def browser() -> Iterator[Any]:
    """Run Debian's Chromium in headless mode."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    # Playwright runs an event loop in this thread, which must not be visible to tests.
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def page_of(opened: Any, serving: Serving, **options: Any) -> Iterator[Any]:
    """Open a dashboard page, and check at the end that it has had no errors."""
    context = opened.new_context(viewport={"width": 1280, "height": 800}, **options)
    context.set_default_timeout(LIMIT_MS)
    errors: list[str] = []
    try:
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(serving.dashboard_url, wait_until="commit")
        yield page
        assert errors == []
    finally:
        context.close()


def show(page: Any, name: str, words: str = "") -> None:
    """Open a page of the dashboard, and wait until it has content."""
    page.evaluate(f"location.hash = {'#/' + name + words!r}")
    ready(page, name)


def ready(page: Any, name: str) -> None:
    """Wait until a page of the dashboard has content."""
    page.wait_for_selector(f"body[data-ready={name}]")


def point_at_call(page: Any, words: str) -> str:
    """Move the pointer over the timeline until the text of a call contains the words.

    Returns the text. The search runs in one task of the browser, so that no update moves a call.
    """
    # Bars are a pixel wide or more, and the pointer selects those within three pixels.
    script = """(canvas, words) => {
        const box = canvas.getBoundingClientRect();
        const hint = document.querySelector(".hint");
        for (let y = box.top; y < box.bottom; y += 7) {
            for (let x = box.right; x > box.left; x -= 5) {
                canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y }));
                if (!hint.hidden && hint.textContent.includes(words)) return hint.textContent;
            }
        }
        return "";
    }"""
    found: str = page.locator("canvas").evaluate(script, words)
    assert found, f"no call has the text {words!r}"
    return found


def stream_threads() -> int:
    """Return the number of topics that are refreshed periodically in this process."""
    return sum(one.name == "mesh-telemetry-topic" for one in threading.enumerate())


def wait_for_quiet() -> None:
    """Wait until no topic has a subscriber."""
    wait_until(lambda: stream_threads() == 0, 30.0)
